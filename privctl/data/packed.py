"""Lines and blocks of plain or compressed (``.gz``, ``.zst``) files, with limits on what they may unpack to."""

from __future__ import annotations

import codecs
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from privctl.domain.errors import InputError
from privctl.storage.reader import unreadable

#: Longest line in bytes: a record of 64 MiB of text is a mistake, or an attempt to exhaust memory.
LONGEST_LINE = 64 << 20
#: Limits on the unpacked size of a compressed file, of which the larger applies: bytes, and a multiple of the
#: compressed size. Text compresses to about a tenth, zeros to 1/1000.
MOST_UNPACKED, MOST_RATIO = 1 << 30, 100
#: Suffix -> name of the compression format.
PACKED = {".gz": "gzip", ".zst": "Zstandard"}
#: Suffix -> magic number of the format.
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
#: Largest window, in bytes, of a Zstandard frame.
_WINDOW = 128 << 20
_BLOCK = 1 << 16


def byte_lines(path: Path, within: tuple[int, int] | None = None) -> Iterator[bytes]:
    """The lines, with their line ends, of a plain or compressed file.

    With ``within``, only the lines of a plain file that begin between these two byte offsets. Raises InputError for a
    line of more than ``LONGEST_LINE`` bytes, and for a compressed file that is incomplete or unpacks to more than both
    ``MOST_UNPACKED`` bytes and ``MOST_RATIO`` times its size; FileSystemError if the file cannot be read.
    """
    with _opened(path) as stream:
        number, total, most = 0, 0, _most_unpacked(path)
        room = math.inf if within is None else within[1] - _first_line(stream, within[0])
        while total < room and (line := stream.readline(LONGEST_LINE + 1)):
            number, total = number + 1, total + len(line)
            if len(line) > LONGEST_LINE:
                raise InputError(
                    f"{path} line {number} has more than {LONGEST_LINE >> 20} MiB; write one record a line, and split "
                    "records that are longer"
                )
            _check_unpacked(path, total, most)
            yield line


def byte_blocks(path: Path) -> Iterator[bytes]:
    """The unpacked bytes of a file in blocks; raises as ``byte_lines`` does, except for long lines."""
    with _opened(path) as stream:
        total, most = 0, _most_unpacked(path)
        while block := stream.read(_BLOCK):
            total += len(block)
            _check_unpacked(path, total, most)
            yield block


def suffix_of(path: Path) -> str:
    """The suffix in lower case, not counting that of a compression: ``.jsonl`` for ``a.jsonl.gz``."""
    name = path.name
    for packed in PACKED:
        name = name.removesuffix(packed)
    return Path(name).suffix.lower()


def not_text(content: bytes, where: str) -> str:
    """The error message for ``content`` that is not UTF-8, such as a compressed file without the suffix."""
    for suffix, magic in _MAGIC.items():
        if content.startswith(magic):
            return f"{where} is not text but {PACKED[suffix]}; give the file a name that ends in {suffix}"
    return f"{where} is not UTF-8 text; save the file as UTF-8"


def opens_array(path: Path) -> bool:
    """Whether the first character of a JSON file, other than white space, opens an array."""
    if not path.is_file():
        return False
    for block in byte_blocks(path):
        if begin := block.removeprefix(codecs.BOM_UTF8).lstrip():
            return begin.startswith(b"[")
    return False


def _first_line(stream: IO[bytes], begin: int) -> int:
    """Seek to the first line that begins at byte ``begin`` or later, and return its offset."""
    if begin == 0:
        return 0
    stream.seek(begin - 1)  # this byte may be the end of the line before
    while (part := stream.readline(LONGEST_LINE)) and not part.endswith(b"\n"):
        pass
    return stream.tell()


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    faults: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    if path.suffix == ".zst":
        import zstandard

        faults = (*faults, zstandard.ZstdError)
    try:
        with _open(path) as stream:
            yield stream
    except faults:
        raise InputError(
            f"{path} is not a complete {PACKED.get(path.suffix, '')} file; compress it again, or give it without "
            f"{path.suffix}"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    if path.suffix == ".zst":
        return cast("IO[bytes]", io.BufferedReader(_Unpacked(path)))
    return path.open("rb")


class _Unpacked(io.RawIOBase):
    """A Zstandard file of any number of frames, unpacked as it is read; raises EOFError if a frame is incomplete."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._source = path.open("rb")
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            if self._frame.eof:
                rest = self._frame.unused_data
                self._frame, self._begun = self._unpacker.decompressobj(), False
            else:
                rest = b""
            # Small, because all that it unpacks to is in memory at once.
            packed = rest or self._source.read(1 << 10)
            if not packed:
                if self._begun:
                    raise EOFError
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(packed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _check_unpacked(path: Path, total: int, most: float) -> None:
    if total > most:
        raise InputError(
            f"{path} unpacks to more than {most / 2**30:.3g} GiB, over {MOST_RATIO} times its size; unpack it and "
            f"give it without {path.suffix} if that is intended"
        )


def _most_unpacked(path: Path) -> float:
    """How many bytes ``path`` may unpack to; infinity unless it is compressed."""
    return max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size) if path.suffix in PACKED else math.inf
