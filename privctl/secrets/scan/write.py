"""The book of secrets as a file: whole or absent, and nobody else's to read."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, cast

from privctl.secrets.table import Secret, write_secrets
from privctl.storage.atomic import PendingFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER = 1 << 20


class _Appending(io.RawIOBase):
    """A pending file as a stream to write to."""

    def __init__(self, pending: PendingFile) -> None:
        super().__init__()
        self._pending, self._position = pending, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        self._pending.write_at(self._position, view)
        self._position += view.nbytes
        return view.nbytes


def write_book(pending: PendingFile, secrets: Iterable[Secret]) -> int:
    """Write ``secrets``, packed where the file's name ends in ``.gz``; returns how many.

    Raises FileSystemError where the system refuses.
    """
    with io.BufferedWriter(_Appending(pending), _BUFFER) as stream:
        if pending.path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                return write_secrets(cast("IO[bytes]", packed), secrets)
        return write_secrets(stream, secrets)
