"""Logs on disk that are only ever added to: each line bears a digest of itself and of all lines before it.

A line that is changed, left out or moved breaks the chain. Lines cut off the end leave a chain that is whole, so a log
is complete only as far as somebody else knows its head. There is no secret in it: whoever may write the file can also
write another one from the start.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from privctl.domain.errors import CommandError
from privctl.storage.atomic import writing
from privctl.storage.journal import sync_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One line: what it says, and the digest that it ends in."""

    body: bytes
    digest: str


class BrokenChain(ValueError):
    """The line ``number``, from 1, is not what the lines before it lead to."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} does not follow from the one before")
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How lines are written: the body, then ``before``, the digest and ``after``, then a newline.

    ``root`` is what the first line builds on, a BLAKE3 digest in hexadecimal as long as all others.
    """

    root: str
    before: bytes
    after: bytes = b""

    def following(self, head: str, body: bytes) -> str:
        """The digest of the line that says ``body`` after one whose digest is ``head``."""
        return blake3(head.encode() + b" " + body).hexdigest(length=len(self.root) // 2)

    def line(self, head: str, body: bytes) -> tuple[bytes, str]:
        """That line, and its digest."""
        digest = self.following(head, body)
        return b"%s%s%s%s\n" % (body, self.before, digest.encode(), self.after), digest

    def read(self, content: bytes) -> tuple[tuple[Link, ...], bytes]:
        """Every whole line of ``content``, and what comes after the last newline; raises BrokenChain."""
        *lines, rest = content.split(b"\n")
        found: list[Link] = []
        head = self.root
        tail = len(self.before) + len(self.root) + len(self.after)
        for number, line in enumerate(lines, start=1):
            body = line[:-tail]
            whole, head = self.line(head, body)
            if whole != line + b"\n":
                raise BrokenChain(number)
            found.append(Link(body=body, digest=head))
        return tuple(found), rest


class LogFile:
    """A log's file, opened to be added to and locked against every other process that would."""

    def __init__(self, path: Path, *, create: bool, wait: bool) -> None:
        """Open and lock ``path``; a new one is its owner's alone.

        Raises CommandError where it is no regular file, BlockingIOError where another process holds it and this one is
        not to ``wait``, FileSystemError where it cannot be written.
        """
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        with writing(path):
            made = not path.exists()
            self._fd = os.open(path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise CommandError(f"{path} is not a regular file, so no log can be kept in it; name another file")
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if made:
                with writing(path):
                    sync_folder(path.absolute().parent)
        except BaseException:
            self.close()
            raise

    def content(self) -> bytes:
        """All that is in it."""
        with writing(self.path):
            size = os.fstat(self._fd).st_size
            return b"".join(self._parts(size))

    def _parts(self, size: int) -> Iterator[bytes]:
        at = 0
        while at < size and (part := os.pread(self._fd, size - at, at)):
            at += len(part)
            yield part

    def add(self, line: bytes) -> None:
        """Put ``line`` at the end, whole; what a full disk left of it is taken off again."""
        with writing(self.path):
            before, left = os.fstat(self._fd).st_size, memoryview(line)
            try:
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:
                os.ftruncate(self._fd, before)
                raise

    def cut(self, size: int) -> None:
        """Take off everything beyond ``size`` bytes: the half of a line that a killed process left."""
        with writing(self.path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Make what was added durable."""
        with writing(self.path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Let other processes go on; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def log_file(path: Path) -> Iterator[LogFile]:
    """The log at ``path``, made where there is none, held for the length of the block."""
    file = LogFile(path, create=True, wait=True)
    try:
        yield file
    finally:
        file.close()
