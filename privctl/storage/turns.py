"""Locks with which processes that write to the same folders take turns."""

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

#: Names of folders that are still being filled: nobody else writes into them, and their creator holds their lock.
_PENDING = re.compile(r"\..*\.[0-9a-f]{12}\.partial", re.DOTALL)
#: The file in a folder that a ``Claim`` locks.
LOCK = ".lock"
#: Errors of file systems that do not support locks, or not those of a file opened for reading.
_NO_LOCKS = (errno.ENOTSUP, errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS)
#: How long to wait for other processes, whose renames are short, and the interval between attempts, in seconds.
_PATIENCE, _PAUSE = 60.0, 0.02


class FolderHeldError(OSError):
    """Another process keeps a folder locked. Anyone who can read a folder can lock it."""


def try_lock(fd: int, *, wait: bool = False) -> bool:
    """Lock ``fd``; returns False if another process has locked it, unless ``wait``.

    On a file system without locks nobody else can have locked it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextmanager
def turn(folders: Iterable[Path], patience: float | None = None) -> Iterator[None]:
    """Lock ``folders`` within the block, so that only one process at a time renames a set of files in them.

    Raises FolderHeldError if one of them stays locked for ``patience`` seconds, a minute by default. Not reentrant. On
    a file system without such locks nobody waits.
    """
    places = {}
    for folder in folders:
        if not _PENDING.fullmatch(folder.name):
            status = folder.stat()
            places[status.st_dev, status.st_ino] = folder
    with ExitStack() as stack:
        for _, folder in sorted(places.items()):  # always in the same order, to avoid deadlock
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            _lock(fd, folder, _PATIENCE if patience is None else patience)
        yield


def _lock(fd: int, folder: Path, patience: float) -> None:
    give_up = time.monotonic() + patience
    while not try_lock(fd):
        if time.monotonic() >= give_up:
            raise FolderHeldError(errno.EAGAIN, f"another process keeps a lock on {folder}")
        time.sleep(_PAUSE)


class Claim:
    """Exclusive use, by one process, of the folder of unfinished work, until ``close``."""

    def __init__(self, folder: Path, what: str) -> None:
        """Lock ``folder``; raises CommandError if another process uses its ``what``, OSError if it does not exist."""
        self._path = folder / LOCK
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if not try_lock(self._fd):
                    raise CommandError(f"another process goes on with the {what} in {folder}; wait for it, or stop it")
                if os.path.lexists(self._path) and os.path.samestat(os.fstat(self._fd), self._path.lstat()):
                    return
            except BaseException:
                self.close()
                raise
            self.close()  # its holder removed it in the meantime

    def remove(self) -> None:
        """Remove the lock file and release the lock."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
