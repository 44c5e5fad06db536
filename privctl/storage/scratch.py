"""Private temporary files of a run: unlinked at once where possible, else in a folder that is swept later."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from privctl.storage.atomic import PendingFolder, writing


class ScratchFile:
    """An append-only file of mode 0600, read through ``descriptor``; unless ``named``, nothing else can open it."""

    def __init__(self, path: Path, *, named: bool) -> None:
        self.path = path
        with writing(path):
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if not named:
                path.unlink()

    def append(self, data: bytes | bytearray) -> None:
        """Append all of ``data``; raises FileSystemError if it does not fit."""
        view = memoryview(data)
        with writing(self.path):
            while view:
                view = view[os.write(self.descriptor, view) :]

    def close(self) -> None:
        """Close the descriptor; existing memory maps stay valid."""
        os.close(self.descriptor)


class ScratchFolder:
    """A hidden folder beside ``path``, of mode 0700, that lasts as long as the block.

    A killed process may leave it behind; the next one for the same ``path`` removes it, as in ``storage.atomic``.
    """

    def __init__(self, path: Path) -> None:
        self._pending = PendingFolder(path)

    @property
    def folder(self) -> Path:
        """Its path."""
        return self._pending.temporary

    def file(self, name: str, *, named: bool) -> ScratchFile:
        """Create the file ``name``, which is unlinked at once unless ``named``."""
        return ScratchFile(self.folder / name, named=named)

    def empty(self) -> None:
        """Unlink all files; those that are open or mapped stay usable."""
        for file in self.folder.iterdir():
            with suppress(OSError):  # some file systems refuse to unlink open files
                file.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._pending.__exit__(kind, error, tb)
