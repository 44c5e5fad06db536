"""Rewriting a safetensors file piece by piece: each byte is read once, and hashed, changed and written on the way.

Each worker takes the next piece, does all work on it while it is in the worker's cache, and waits only where order
matters: pieces enter the digests in order. Memory is one buffer per worker and output, whatever the file's size.

The safetensors package is not used, because it writes only what is entirely in memory, and computes no digests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from privctl.domain.progress import Advance, silent
from privctl.domain.report import TensorDigest
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import TensorHasher, tag
from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``start`` to ``start + size`` of one tensor; ``index`` is its position among the file's pieces."""

    index: int
    tensor: TensorInfo
    start: int
    size: int

    @property
    def last(self) -> bool:
        """Whether the tensor ends with this piece."""
        return self.start + self.size == self.tensor.size


#: Takes a piece and one buffer per output, the first of which holds the piece's bytes; fills each buffer with that
#: output's bytes. Called from several threads at once.
Transform = Callable[[Piece, Sequence[memoryview]], None]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One finished output, not yet committed."""

    path: Path
    digest: str
    size: int
    tensors: tuple[TensorDigest, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The digest of the input as it was read, and the outputs in the order requested, not yet committed."""

    input_digest: str
    outputs: tuple[WrittenFile, ...]


def pieces(tensors: Sequence[TensorInfo]) -> Iterator[Piece]:
    """Cut the tensors into pieces, in file order; an empty tensor gives one empty piece."""
    index = 0
    for tensor in tensors:
        for start in range(0, max(tensor.size, 1), CHUNK):
            yield Piece(index, tensor, start, min(CHUNK, tensor.size - start))
            index += 1


def rewrite(
    source: SafetensorsFile,
    pending: Sequence[PendingFile],
    headers: Sequence[bytes],
    transform: Transform,
    *,
    threads: int = 2,
    advance: Advance = silent,
) -> Rewritten:
    """Stream ``source`` through ``transform`` into every file of ``pending``, which stay uncommitted.

    ``headers[i]`` is the header of output i; it must describe the source's tensors in the source's order. ``advance``
    is called with the bytes processed, by one thread at a time. Raises the first error of any worker.
    """
    run = _RewriteRun(source, pending, headers, transform, advance)
    with ThreadPoolExecutor(threads, thread_name_prefix="rewrite") as pool:
        workers = [pool.submit(run.work) for _ in range(threads)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            run.abandon()
            raise
    return run.result()


class _AbandonedError(Exception):
    """Another worker failed, so this one stops silently."""


class _Turns:
    """Admits the pieces one at a time, in order of their index."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._open = True

    @contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """A context that piece ``index`` enters after all earlier ones. Raises _AbandonedError once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == index or not self._open)
            if not self._open:
                raise _AbandonedError
        yield
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()


class _RewriteRun:
    """The state that the workers of one rewrite share."""

    def __init__(
        self,
        source: SafetensorsFile,
        pending: Sequence[PendingFile],
        headers: Sequence[bytes],
        transform: Transform,
        advance: Advance,
    ) -> None:
        self._source, self._pending, self._headers = source, pending, headers
        self._transform, self._advance = transform, advance
        self._todo = pieces(source.tensors)
        self._taking = threading.Lock()
        self._reading, self._writing, self._hashing = _Turns(), _Turns(), _Turns()
        self._failure: BaseException | None = None
        head = bytearray(source.header.data_start)
        source.read_into(0, memoryview(head))
        self._input = blake3(head)
        self._hashers = [TensorHasher(header) for header in headers]
        for output, header in zip(pending, headers, strict=True):
            output.write_at(0, header)

    def work(self) -> None:
        """Process pieces until none is left."""
        buffers = [memoryview(bytearray(CHUNK)) for _ in self._pending]
        try:
            while (piece := self._take()) is not None:
                self._handle(piece, [buffer[: piece.size] for buffer in buffers])
        except _AbandonedError:
            return
        except BaseException as error:
            self._failure = self._failure or error
            self.abandon()

    def abandon(self) -> None:
        """Stop every worker at its next piece or turn."""
        with self._taking:
            self._todo = iter(())
        self._reading.close()
        self._writing.close()
        self._hashing.close()

    def result(self) -> Rewritten:
        """The digests and outputs; raises the first error of a worker."""
        if self._failure is not None:
            raise self._failure
        size = sum(t.size for t in self._source.tensors)
        outputs = (
            WrittenFile(p.path, h.file_digest, len(header) + size, h.tensors)
            for p, h, header in zip(self._pending, self._hashers, self._headers, strict=True)
        )
        return Rewritten(tag(self._input), tuple(outputs))

    def _take(self) -> Piece | None:
        with self._taking:
            return next(self._todo, None)

    def _handle(self, piece: Piece, views: list[memoryview]) -> None:
        start = piece.tensor.begin + piece.start
        self._source.read_into(self._source.header.data_start + start, views[0])
        with self._reading.turn(piece.index):
            self._input.update(views[0])
        self._transform(piece, views)
        with self._writing.turn(piece.index):
            for output, header, view in zip(self._pending, self._headers, views, strict=True):
                output.write_at(len(header) + start, view)
        with self._hashing.turn(piece.index):
            for hasher, view in zip(self._hashers, views, strict=True):
                hasher.update(view)
                if piece.last:
                    hasher.finish_tensor(piece.tensor)
            self._advance(piece.size)
