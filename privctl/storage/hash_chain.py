"""Append-only logs on disk: each line contains a digest of itself and of all lines before it.

Changing, removing or moving a line breaks the chain. Truncating the log does not, so it is known to be complete only up
to a head recorded elsewhere. There is no secret key: anyone who can write the file can also forge a new one.
"""

from __future__ import annotations

import errno
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
from privctl.storage.turns import try_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One line: its body, and the digest at its end."""

    body: bytes
    digest: str


class BrokenChainError(ValueError):
    """The line ``number``, from 1, does not match the lines before it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} does not follow from the one before")
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The format of lines: the body, then ``prefix``, the digest and ``suffix``, then a newline.

    ``root`` takes the place of the previous digest in the first line: a hexadecimal BLAKE3 digest of the same length.
    """

    root: str
    prefix: bytes
    suffix: bytes = b""

    def digest_of(self, head: str, body: bytes) -> str:
        """The digest of a line with ``body`` after one whose digest is ``head``."""
        return blake3(head.encode() + b" " + body).hexdigest(length=len(self.root) // 2)

    def line(self, head: str, body: bytes) -> tuple[bytes, str]:
        """The line with ``body`` after one whose digest is ``head``, and its digest."""
        digest = self.digest_of(head, body)
        return b"%s%s%s%s\n" % (body, self.prefix, digest.encode(), self.suffix), digest

    def read(self, content: bytes) -> tuple[tuple[Link, ...], bytes]:
        """Every complete line of ``content``, and what follows the last newline; raises BrokenChainError."""
        *lines, remainder = content.split(b"\n")
        links: list[Link] = []
        head = self.root
        tail = len(self.prefix) + len(self.root) + len(self.suffix)
        for number, line in enumerate(lines, start=1):
            body = line[:-tail]
            expected, head = self.line(head, body)
            if expected != line + b"\n":
                raise BrokenChainError(number)
            links.append(Link(body=body, digest=head))
        return tuple(links), remainder


class LogFile:
    """A log file, opened for appending and locked against other writers."""

    def __init__(self, path: Path, *, create: bool, wait: bool) -> None:
        """Open and lock ``path``; a new file has mode 0600.

        Raises CommandError if it is not a regular file, BlockingIOError if another process has locked it and ``wait``
        is false, and FileSystemError if it cannot be opened for writing.
        """
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        with writing(path):
            is_new = not path.exists()
            self._fd = os.open(path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise CommandError(f"{path} is not a regular file, so no log can be kept in it; name another file")
            if not try_lock(self._fd, wait=wait):
                raise BlockingIOError(errno.EAGAIN, f"another process has locked {path}")
            if is_new:
                with writing(path):
                    sync_folder(path.absolute().parent)
        except BaseException:
            self.close()
            raise

    def _narrow(self) -> None:
        """Take from the file's mode what it may have got by copying, unpacking or checking it out."""
        status = os.fstat(self._fd)
        mode = stat.S_IMODE(status.st_mode)
        narrow = mode & ~(stat.S_IRWXO if mode & stat.S_IWGRP else stat.S_IRWXO | stat.S_IRWXG)
        if narrow != mode and status.st_uid == os.geteuid():
            with writing(self.path):
                os.fchmod(self._fd, narrow)

    def content(self) -> bytes:
        """The whole content of the file."""
        with writing(self.path):
            size = os.fstat(self._fd).st_size
            return b"".join(self._chunks(size))

    def _chunks(self, size: int) -> Iterator[bytes]:
        position = 0
        while position < size and (chunk := os.pread(self._fd, size - position, position)):
            position += len(chunk)
            yield chunk

    def add(self, line: bytes) -> None:
        """Append ``line``; if that fails, a partial line is removed again.

        A file of this user is narrowed first: others never read a log, and a group only if it may write to it too, as
        to a log that several people share.
        """
        self._narrow()
        with writing(self.path):
            size, remaining = os.fstat(self._fd).st_size, memoryview(line)
            try:
                while remaining:
                    remaining = remaining[os.write(self._fd, remaining) :]
            except OSError:
                os.ftruncate(self._fd, size)
                raise

    def cut(self, size: int) -> None:
        """Truncate to ``size`` bytes, to remove a partial line left by a killed process."""
        with writing(self.path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Make what was added durable."""
        with writing(self.path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file and release its lock; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def log_file(path: Path) -> Iterator[LogFile]:
    """The log at ``path``, created if necessary and locked within the block."""
    file = LogFile(path, create=True, wait=True)
    try:
        yield file
    finally:
        file.close()
