"""A number on disk that says how often something was begun, written before each time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from privctl.domain.errors import InputFault, UsageFault
from privctl.storage.atomic import writing

#: The number reaches the disk at least this often, in seconds; a killed process loses nothing, a power cut this much.
_SYNC_EVERY = 1.0


class Begun:
    """The count in the file ``path``, kept to one process from its first ``mark`` on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._synced = 0.0

    def mark(self, begun: int) -> None:
        """Note that so many were begun, before anything of the last one is computed."""
        with writing(self._path.parent):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._lock()
            os.pwrite(self._fd, b"%020d\n" % begun, 0)
            if time.monotonic() - self._synced > _SYNC_EVERY:
                os.fdatasync(self._fd)
                self._synced = time.monotonic()

    def read(self) -> int:
        """The number, 0 where none was ever begun; raises InputFault for a damaged file."""
        try:
            return int(self._path.read_bytes() or b"0")
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            raise InputFault(
                f"{self._path} does not say how much was begun, so no ledger can be right; begin anew"
            ) from None

    def close(self) -> None:
        """Let other processes go on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> None:
        """Two processes that went on with one run would each know the half of what was begun."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageFault(
                f"another process goes on with the run in {self._path.parent}; wait for it, or stop it"
            ) from None
