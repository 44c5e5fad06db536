"""A log on disk of what was begun, written before each time: an entry is added, none is ever changed.

Each line holds a count and a digest of all lines before it, which starts from the run's settings. A line that is
changed, left out or taken from another run breaks the chain. Lines cut off the end are noticed as far as the saved
state knows of them; beyond that nobody can tell, so the log is evidence against accidents, not against its owner.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path

from blake3 import blake3

from privctl.domain.errors import InputFault, UsageFault
from privctl.storage.atomic import writing

#: A line reaches the disk at least this often, in seconds; a killed process loses nothing, a power cut this much.
_SYNC_EVERY = 1.0
_LINE = 20 + 1 + 32 + 1


class ReleaseCounter:
    """The counts in the file ``path``, kept to one process from its first ``mark`` on.

    ``root`` is what the chain starts from. The file is made empty together with the run, so a missing one is a fault.
    """

    def __init__(self, path: Path, root: bytes) -> None:
        self._path = path
        self._root = blake3(root).hexdigest(length=16)
        self._fd = -1
        self._synced = 0.0
        self.head = self._root

    def mark(self, begun: int) -> None:
        """Note that so many were begun, before anything of the last one is computed."""
        with writing(self._path.parent):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                self._lock()
                self.read()
            self.head = _next(self.head, begun)
            os.write(self._fd, b"%020d %s\n" % (begun, self.head.encode()))
            if time.monotonic() - self._synced > _SYNC_EVERY:
                os.fdatasync(self._fd)
                self._synced = time.monotonic()

    def read(self, known: str | None = None) -> int:
        """The last count, 0 where nothing was ever begun; ``known`` is a digest that must occur in the log.

        A last line that a kill cut short counts in full. Raises InputFault for a log that is missing, damaged, or does
        not go as far as ``known``.
        """
        try:
            content = self._path.read_bytes()
        except OSError:
            raise self._fault("is missing") from None
        whole = len(content) // _LINE
        count, head, heads = 0, self._root, {self._root}
        for start in range(0, whole * _LINE, _LINE):
            number, _, digest = content[start : start + _LINE - 1].decode("ascii", "replace").partition(" ")
            if not number.isdecimal() or int(number) <= count or digest != _next(head, int(number)):
                raise self._fault("is damaged or was edited")
            count, head = int(number), digest
            heads.add(head)
        cut = content[whole * _LINE :]
        if not re.fullmatch(rb"[0-9]{0,20}|[0-9]{20} [0-9a-f]*", cut):
            raise self._fault("is damaged or was edited")
        if known is not None and known not in heads:
            raise self._fault("was cut short or belongs to another run")
        if cut:
            self._mend(whole * _LINE)
            count = max(count + 1, int(cut[:20]) if len(cut) >= 20 else 0)
        self.head = head
        return count

    def close(self) -> None:
        """Let other processes go on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _mend(self, size: int) -> None:
        """Take off the half of a line, where this process writes the log."""
        if self._fd >= 0:
            os.ftruncate(self._fd, size)

    def _fault(self, what: str) -> InputFault:
        return InputFault(
            f"{self._path} {what}, so no ledger of this run can be right; begin anew with another --output, and count "
            "what this run may have released"
        )

    def _lock(self) -> None:
        """Two processes that went on with one run would each know the half of what was begun."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageFault(
                f"another process goes on with the run in {self._path.parent}; wait for it, or stop it"
            ) from None


def _next(head: str, count: int) -> str:
    return blake3(f"{head} {count}".encode()).hexdigest(length=16)
