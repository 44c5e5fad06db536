"""Splits data into shares for separate processes: together they hold each record once, in the order of the data.

The files are concatenated, and shard i of n gets the i-th of n equal ranges of bytes. Files of lines and parquet files
may be split: a line or row group belongs to the share in which it begins. Other files (compressed ones, tables whose
cells may hold line ends, one JSON array, Arrow) cannot be read from the middle, so each belongs as a whole to the shard
in whose range it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from privctl.data.packed import PACKED, opens_array, suffix_of
from privctl.data.places import LINES, PARQUET, STDIN, TEXT, data_files
from privctl.data.several import DataPath, paths_of
from privctl.domain.errors import CommandError, InputError
from privctl.storage.digest import tag
from privctl.storage.reader import unreadable

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShare:
    """Bytes ``begin`` to ``end`` of ``file``, which has ``size`` bytes; ``index`` is its position among the files.

    ``index`` and ``shard`` count from 0.
    """

    shard: int
    index: int
    file: Path
    begin: int
    end: int
    size: int

    @property
    def within(self) -> tuple[int, int] | None:
        """The byte range in which its lines or row groups begin; None for the whole file."""
        return None if (self.begin, self.end) == (0, self.size) else (self.begin, self.end)

    @property
    def is_first(self) -> bool:
        """Whether the file begins in this share."""
        return self.begin == 0


def shares_of(path: DataPath, count: int) -> tuple[FileShare, ...]:
    """The shares of all ``count`` shards, in the order of the data; every process computes the same ones.

    Raises CommandError for standard input, InputError for a file that is not regular, and as ``data_files`` does.
    """
    if STDIN in paths_of(path):
        raise CommandError("standard input cannot be read in shares; save it to a file that all processes can read")
    files = data_files(path)
    sizes = [_size(file) for file in files]
    total = sum(sizes)
    borders = [total * shard // count for shard in range(count)]
    return tuple(_shares(files, sizes, borders, total))


def digests_of(share: FileShare, shares: Sequence[FileShare]) -> tuple[str, tuple[str, ...]]:
    """(digest of the share's bytes, digests of its whole file and, if that has several shares, of each share).

    The second part is empty unless the file begins in this share. So the process with the first share of a file reads
    all of it, and merging the shares can check that all processes read the same bytes without reading the file again.
    Raises InputError if the file has become shorter.
    """
    if not share.is_first or share.within is None:
        digest, _ = _digest(share.file, [(share.begin, share.end)])
        return digest[0], digest if share.is_first else ()
    digests, whole = _digest(share.file, [(other.begin, other.end) for other in shares if other.index == share.index])
    return digests[0], (whole, *digests)


def _shares(files: Sequence[Path], sizes: Sequence[int], borders: Sequence[int], total: int) -> Iterator[FileShare]:
    count, before = len(borders), 0
    for index, (file, size) in enumerate(zip(files, sizes, strict=True)):
        # The last shard that begins here or earlier: of shards with equal borders, all but the last are empty.
        first = max(shard for shard in range(count) if borders[shard] <= before)
        shard, begin = first, 0
        if size and _can_be_cut(file):
            for shard in range(first, count):
                end = min(size, (borders[shard + 1] if shard + 1 < count else total) - before)
                if end > begin:
                    yield FileShare(shard=shard, index=index, file=file, begin=begin, end=end, size=size)
                    begin = end
        else:
            yield FileShare(shard=first, index=index, file=file, begin=0, end=size, size=size)
        before += size


def _can_be_cut(file: Path) -> bool:
    if file.suffix in PACKED:
        return False
    suffix = suffix_of(file)
    return suffix in (PARQUET, TEXT) or (suffix in LINES and not (suffix == ".json" and opens_array(file)))


def _size(file: Path) -> int:
    if not file.is_file():
        raise InputError(f"{file} is not an ordinary file, so it cannot be read in shares; save it to one")
    return file.stat().st_size


def _digest(file: Path, ranges: Sequence[tuple[int, int]]) -> tuple[tuple[str, ...], str]:
    """(digest of each of the adjoining byte ``ranges``, digest of all of them together)."""
    whole, digests = blake3(), []
    try:
        with file.open("rb", buffering=0) as stream:
            stream.seek(ranges[0][0])
            for begin, end in ranges:
                part, left = blake3(), end - begin
                while left and (block := stream.read(min(_BLOCK, left))):
                    part.update(block)
                    whole.update(block)
                    left -= len(block)
                if left:
                    raise InputError(f"{file} became shorter while it was read; scan it when nothing writes to it")
                digests.append(tag(part))
    except OSError as error:
        raise unreadable(file, error) from None
    return tuple(digests), tag(whole)
