"""An append-only log on disk of releases, each entry written before its release begins.

Each line holds a count and a digest of all lines before it, which starts from the run's settings. A line that is
changed, missing or taken from another run breaks the chain. Truncation is detected only up to the last digest in the
saved state, so the log protects against accidents, not against its owner.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from blake3 import blake3

from privctl.domain.errors import CommandError, InputError
from privctl.storage.hash_chain import BrokenChainError, Chain, LogFile

#: A line reaches the disk at least this often, in seconds; a killed process loses nothing, a power cut this much.
_SYNC_EVERY = 1.0


class ReleaseLog:
    """The log of counts in the file ``path``, which this process locks at its first ``mark``.

    ``root`` is the start of the chain. The file is created empty together with the run, so a missing file is an error.
    """

    def __init__(self, path: Path, root: bytes) -> None:
        self._path = path
        self._chain = Chain(root=blake3(root).hexdigest(length=16), prefix=b" ")
        self._file: LogFile | None = None
        self._synced = 0.0
        self.head = self._chain.root

    def mark(self, begun: int) -> None:
        """Log that ``begun`` releases were begun, before the last of them is computed."""
        if self._file is None:
            self._file = self._opened()
            self.read()
        line, self.head = self._chain.line(self.head, b"%020d" % begun)
        self._file.add(line)
        if time.monotonic() - self._synced > _SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        """Make durable what this process has logged."""
        if self._file is not None:
            self._file.sync()
            self._synced = time.monotonic()

    def read(self, known: str | None = None) -> int:
        """The last count, 0 if nothing was ever begun; ``known`` is a digest that must occur in the log.

        A last line that a kill cut short counts in full. Raises InputError if the log is missing or damaged, or ends
        before ``known``.
        """
        try:
            content = self._path.read_bytes()
        except OSError:
            raise self._fault("is missing") from None
        try:
            links, cut = self._chain.read(content)
        except BrokenChainError:
            raise self._fault("is damaged or was edited") from None
        count = 0
        for link in links:
            if not re.fullmatch(rb"[0-9]{20}", link.body) or int(link.body) <= count:
                raise self._fault("is damaged or was edited")
            count = int(link.body)
        if not re.fullmatch(rb"[0-9]{0,20}|[0-9]{20} [0-9a-f]*", cut):
            raise self._fault("is damaged or was edited")
        heads = [self._chain.root, *(link.digest for link in links)]
        if known is not None and known not in heads:
            raise self._fault("was cut short or belongs to another run")
        if cut:
            if self._file is not None:  # only the process that writes the log removes half a line
                self._file.cut(len(content) - len(cut))
            count = max(count + 1, int(cut[:20]) if len(cut) >= 20 else 0)
        self.head = heads[-1]
        return count

    def close(self) -> None:
        """Release the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> LogFile:
        """Lock the log. Two processes that resume the same run would each count only half of the steps begun."""
        try:
            return LogFile(self._path, create=False, wait=False)
        except BlockingIOError:
            raise CommandError(
                f"another process goes on with the run in {self._path.parent}; wait for it, or stop it"
            ) from None

    def _fault(self, what: str) -> InputError:
        return InputError(
            f"{self._path} {what}, so the ledger of this run would be wrong; start again with another --output, and "
            "account for what this run may have released"
        )
