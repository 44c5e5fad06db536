"""Records of a data set with their numbers, read lazily from files of any supported format (see ``rows``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privctl.data.columns import USUAL, Columns, split_pair, text_of
from privctl.data.contents import text_content
from privctl.data.rows import rows_of
from privctl.data.several import DataPath

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Record:
    """One record; ``line`` counts from 1.

    ``label`` is the record's label as the file states it, if any. An image has ``pixels`` and an empty ``text``; a
    sound has its samples (n,) as ``pixels``; the ``line`` of either is its position in the set. In a pair of texts the
    target begins at character ``start`` of ``text``, which is 0 otherwise.
    """

    line: int
    text: str
    label: str | None = None
    pixels: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    start: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        """(source, target)."""
        return split_pair(self.text, self.start)

    @property
    def digest(self) -> bytes:
        """Identifies the record in any file: 16 bytes of BLAKE2b over its text, label, pixels and start."""
        hasher = hashlib.blake2b(self.text.encode(), digest_size=16)
        if self.label is not None:
            hasher.update(b"\0label\0" + self.label.encode())
        if self.start:
            hasher.update(f"\0start\0{self.start}".encode())
        if self.pixels is not None:
            hasher.update(f"\0{self.pixels.dtype.str}{self.pixels.shape}\0".encode())
            hasher.update(self.pixels.tobytes())
        return hasher.digest()

    @property
    def content(self) -> bytes:
        """As ``digest``, but equal for texts that differ only as ``text_content`` ignores, and without ``start``."""
        if self.pixels is not None:
            return self.digest
        return hashlib.blake2b(text_content(self.text) + (self.label or "").encode(), digest_size=16).digest()


def read_records(path: DataPath, columns: Columns | None = None) -> Iterator[Record]:
    """The records at ``path``, one at a time, without labels; a file with an unknown suffix is read as JSON lines.

    Raises InputError, naming the line, for anything that is not a record, and for a file without any; FileSystemError
    if a file cannot be read.
    """
    columns = columns or USUAL
    for row in rows_of(path, columns, otherwise=".jsonl"):
        yield Record(row.number, text_of(row.fields, row.where, columns).text)
