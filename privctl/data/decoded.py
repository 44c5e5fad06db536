"""What images and sounds take in memory once they are decoded, held against the size of their files.

A picture of one colour is a thousand times smaller in its file, a table stores an image once for many rows, and many
records may name one sound.
"""

from __future__ import annotations

from privctl.data.packed import MOST_RATIO, MOST_UNPACKED
from privctl.data.several import DataPath
from privctl.domain.errors import InputError


class Decoded:
    """The bytes that were decoded so far of the data at ``path``, and those of the files that they came from."""

    def __init__(self, path: DataPath) -> None:
        self._path = path
        self._size = self._packed = 0

    def read(self, packed: int) -> None:
        """Count a file of so many bytes; one that is read again is counted once, by the caller."""
        self._packed += packed

    def add(self, size: int) -> None:
        """Count so many decoded bytes; raises InputError where they are more than their files may become."""
        self._size += size
        most = max(MOST_UNPACKED, MOST_RATIO * self._packed)
        if self._size > most:
            raise InputError(
                f"{self._path} unpacks to more than {most / 2**30:.3g} GiB, over {MOST_RATIO} times its size; make the "
                "images smaller (--resize) or the sounds fewer, or cut it into parts"
            )
