"""Digests of files and of tensors: BLAKE3, as ``b3sum`` prints it, in the form ``blake3:hex``.

SHA-256 would cost more than reading, noising and writing a checkpoint together (1.9 against 9 GB/s a core).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from privctl.domain.progress import Advance, silent
from privctl.domain.report import TensorDigest
from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile, named_text, require_ordinary, unreadable

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestedFile:
    """A file, or a folder digested as a whole, of this many bytes."""

    path: Path
    digest: str
    bytes: int


def tag(hasher: blake3) -> str:
    """The finished digest with its algorithm's name."""
    return f"blake3:{hasher.hexdigest()}"


class TensorHasher:
    """The digests of one safetensors file, fed with its tensors' bytes in file order."""

    def __init__(self, header: bytes) -> None:
        self._file = blake3(header)
        self._tensor = blake3()
        self._digests: list[TensorDigest] = []

    def update(self, data: memoryview) -> None:
        """Take the next bytes of the current tensor."""
        self._file.update(data)
        self._tensor.update(data)

    def finish_tensor(self, tensor: TensorInfo) -> None:
        """Close the current tensor and begin the next."""
        self._digests.append(TensorDigest(
            name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, digest=tag(self._tensor)
        ))  # fmt: skip
        self._tensor = blake3()

    @property
    def file_digest(self) -> str:
        """Digest of everything so far, header included."""
        return tag(self._file)

    @property
    def tensors(self) -> tuple[TensorDigest, ...]:
        """Digests by name."""
        return tuple(sorted(self._digests, key=lambda d: d.name))


def bytes_digest(data: bytes) -> str:
    """Digest of ``data``."""
    return tag(blake3(data))


def file_digest(path: Path, advance: Advance = silent) -> str:
    """Digest of a file's bytes; raises InputError or FileSystemError where it cannot be read."""
    digest = blake3()
    buffer = bytearray(_BLOCK)
    try:
        with path.open("rb", buffering=0) as stream:
            while got := stream.readinto(buffer):
                digest.update(memoryview(buffer)[:got])
                advance(got)
    except OSError as error:
        raise unreadable(path, error) from None
    return tag(digest)


def read_digested(path: Path) -> tuple[str, DigestedFile]:
    """The file as UTF-8 text, and the digest of the bytes that gave it; raises as ``read_text`` does."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    return named_text(content, path), DigestedFile(path=path, digest=bytes_digest(content), bytes=len(content))


class NamedFiles:
    """Files named by reports: each is read once, and only if it is an ordinary file.

    A report may name one large file a thousand times, a pipe that never answers, or kernel memory.
    """

    def __init__(self, digests: Mapping[Path, str] | None = None) -> None:
        """``known`` are digests of files that were read already."""
        self._digests: dict[Path, str] = dict(digests or {})

    def digest(self, path: Path, advance: Advance = silent) -> str:
        """As ``file_digest``; raises InputError also for a device, a pipe, or what the kernel makes up."""
        if path not in self._digests:
            require_ordinary(path)
            self._digests[path] = file_digest(path, advance)
        return self._digests[path]

    def is_as_recorded(self, path: Path, digest: str, size: int, advance: Advance = silent) -> bool:
        """Whether the file has this digest and ``size`` in bytes; one of another size, however large, is not read.

        Raises as ``digest``.
        """
        require_ordinary(path)
        return path.stat().st_size == size and self.digest(path, advance) == digest


def hash_tensors(file: SafetensorsFile, advance: Advance = silent) -> TensorHasher:
    """The digests of an open file, read once from front to back in constant memory."""
    header = bytearray(file.header.data_start)
    file.read_into(0, memoryview(header))
    hasher = TensorHasher(bytes(header))
    buffer = memoryview(bytearray(_BLOCK))
    for tensor in file.tensors:
        for start in range(0, tensor.size, _BLOCK):
            chunk = buffer[: min(_BLOCK, tensor.size - start)]
            file.read_into(file.header.data_start + tensor.begin + start, chunk)
            hasher.update(chunk)
            advance(len(chunk))
        hasher.finish_tensor(tensor)
    return hasher


def changed_tensors(current: Iterable[TensorDigest], recorded: Iterable[TensorDigest]) -> list[str]:
    """Names of the tensors that differ between two sets of digests, sorted; missing and extra ones count."""
    left, right = ({d.name: d for d in side} for side in (current, recorded))
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
