"""Limits the memory that decoded images and sounds take, relative to the size of their files.

A picture of one colour compresses a thousandfold, a table may store an image once for many rows, and many records may
name the same sound.
"""

from __future__ import annotations

from privctl.data.packed import MOST_RATIO, MOST_UNPACKED
from privctl.data.several import DataPath
from privctl.domain.errors import InputError


class Decoded:
    """Counts the bytes decoded so far from the data at ``path``, and the bytes of the files they came from."""

    def __init__(self, path: DataPath) -> None:
        self._path = path
        self._size = self._packed = 0

    def read(self, packed: int) -> None:
        """Count a file of ``packed`` bytes. The caller counts a file only once, however often it is read."""
        self._packed += packed

    def add(self, size: int) -> None:
        """Count ``size`` decoded bytes; raises InputError if the total exceeds what the files may unpack to."""
        self._size += size
        most = max(MOST_UNPACKED, MOST_RATIO * self._packed)
        if self._size > most:
            raise InputError(
                f"{self._path} unpacks to more than {most / 2**30:.3g} GiB, over {MOST_RATIO} times its size; make the "
                "images smaller (--resize) or the sounds fewer, or cut it into parts"
            )
