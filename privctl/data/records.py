"""Records of a data set with their numbers, read lazily from whatever files hold them (see ``rows``)."""

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
    """One record; ``line`` counts from 1, as editors do.

    ``label`` is the record's label as the file states it, if any. An image has ``pixels`` and an empty ``text``, a
    sound its samples (n,) as ``pixels``; the ``line`` of both is their position in the set. Of a pair of texts
    the target begins at character ``start`` of ``text``; else that is 0.
    """

    line: int
    text: str
    label: str | None = None
    pixels: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    start: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        """Source and target."""
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
        """As ``digest``, but equal for texts that differ in case, white space or the form of letters alone."""
        if self.pixels is not None:
            return self.digest
        return hashlib.blake2b(text_content(self.text) + (self.label or "").encode(), digest_size=16).digest()


def read_records(path: DataPath, columns: Columns | None = None) -> Iterator[Record]:
    """The texts of the records at ``path``, one at a time; a file of an unknown suffix is read as JSON lines.

    Raises InputError, naming the line, for anything that is not a record, and for a file without any; FileSystemError
    where the system refuses.
    """
    columns = columns or USUAL
    for row in rows_of(path, columns, otherwise=".jsonl"):
        yield Record(row.number, text_of(row.fields, row.where, columns).text)
