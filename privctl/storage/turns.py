"""Locks by which processes that write to the same places take turns."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from privctl.domain.errors import CommandError

#: What a folder is called that is being filled: nobody else writes into it, and its maker holds its lock.
_PENDING = re.compile(r"\..*\.[0-9a-f]{12}\.partial", re.DOTALL)
#: The file in a folder that its ``Claim`` locks.
LOCK = ".lock"
#: What a file system says that knows no locks of folders.
_NO_LOCKS = (errno.ENOTSUP, errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS)
#: For how long others are waited for, whose renames take a moment, and how often the lock is tried, in seconds.
_PATIENCE, _PAUSE = 60.0, 0.02


class FolderHeldError(OSError):
    """Another process does not let go of a folder's lock. Anyone who may read a folder can hold it."""


@contextmanager
def turn(folders: Iterable[Path], patience: float | None = None) -> Iterator[None]:
    """Wait until no other process renames a set of files in one of ``folders``, and keep others waiting in the block.

    Raises FolderHeldError once one of them was held for ``patience`` seconds, a minute by default. Not for one process
    within its own turn. On a file system without such locks nobody waits.
    """
    places = {}
    for folder in folders:
        if not _PENDING.fullmatch(folder.name):
            status = folder.stat()
            places[status.st_dev, status.st_ino] = folder
    with ExitStack() as stack:
        for _, folder in sorted(places.items()):  # in one order, so that no two wait for each other
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            _lock(fd, folder, _PATIENCE if patience is None else patience)
        yield


def _lock(fd: int, folder: Path, patience: float) -> None:
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise FolderHeldError(errno.EAGAIN, f"another process keeps a lock on {folder}") from None
            time.sleep(_PAUSE)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return


class Claim:
    """The folder of something unfinished, which one process goes on with, from here until ``close``."""

    def __init__(self, folder: Path, what: str) -> None:
        """Raises CommandError where another process goes on with its ``what``, OSError where there is no folder."""
        self._path = folder / LOCK
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.lexists(self._path) and os.path.samestat(os.fstat(self._fd), self._path.lstat()):
                    return
            except BlockingIOError:
                self.close()
                raise CommandError(
                    f"another process goes on with the {what} in {folder}; wait for it, or stop it"
                ) from None
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    return
                self.close()
                raise
            self.close()  # its holder has removed it meanwhile

    def remove(self) -> None:
        """Remove the file of the lock, and let other processes go on."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let other processes go on; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
