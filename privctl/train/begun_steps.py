"""An append-only log on disk of releases, each entry written before its release begins.

Each line holds a count and a digest of all lines before it, which starts from the run's settings. A line that is
changed, missing or taken from another run breaks the chain. Truncation is detected only up to the last digest in the
saved state, so the log protects against accidents, not against its owner.
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
    """The counts in the file ``path``, locked by this process from its first ``mark`` on.

    ``root`` is the start of the chain. The file is created empty together with the run, so a missing file is an error.
    """

    def __init__(self, path: Path, root: bytes) -> None:
        self._path = path
        self._root = blake3(root).hexdigest(length=16)
        self._fd = -1
        self._synced = 0.0
        self.head = self._root

    def mark(self, begun: int) -> None:
        """Record that ``begun`` releases have begun, before the last of them is computed."""
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
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _mend(self, size: int) -> None:
        """Remove an incomplete last line, if this process holds the log."""
        if self._fd >= 0:
            os.ftruncate(self._fd, size)

    def _fault(self, what: str) -> InputFault:
        return InputFault(
            f"{self._path} {what}, so the ledger of this run would be wrong; start again with another --output, and "
            "account for what this run may have released"
        )

    def _lock(self) -> None:
        """Lock the log: of two processes that continue one run, each would count only its own releases."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageFault(
                f"another process is continuing the run in {self._path.parent}; wait for it, or stop it"
            ) from None


def _next(head: str, count: int) -> str:
    return blake3(f"{head} {count}".encode()).hexdigest(length=16)
