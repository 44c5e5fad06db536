"""Reports as a gate reads them: bounded regular files, digested and decoded from one reading, with line numbers."""

from __future__ import annotations

import json
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.gate import FileLine
from privctl.domain.report import PrivacyReport
from privctl.reports.codec import decode
from privctl.storage.reader import is_kernel_file

#: A key of an object or a position in a list.
Step = str | int

_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class JsonLines:
    """The line numbers of values in a valid JSON text. Each list and object is scanned once, when needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: list[int] | None = None
        self._inside: dict[int, dict[Step, int]] = {}

    def of(self, steps: Sequence[Step]) -> int:
        """The line, from 1, of the value that ``steps`` lead to, or of the last one on the way that is there.

        ``JsonLines('{"a":\\n [1,\\n 2]}').of(["a", 1])`` is 3.
        """
        at = self._skip(0)
        for step in steps:
            if at not in self._inside:
                self._inside[at] = dict(self._members(at))
            position = self._inside[at].get(step)
            if position is None:
                break
            at = position
        if self._ends is None:
            self._ends = [position.start() for position in re.finditer("\n", self._text)]
        return bisect_left(self._ends, at) + 1

    def _members(self, at: int) -> Iterator[tuple[Step, int]]:
        """The members of the object or the items of the list that begins at ``at``; none of anything else."""
        opening = self._text[at]
        if opening not in "{[":
            return
        at, index = self._skip(at + 1), 0
        while self._text[at] not in "}]":
            step: Step = index
            if opening == "{":
                step, at = _DECODER.raw_decode(self._text, at)
                at = self._skip(self._skip(at) + 1)  # the colon
            yield step, at
            _, at = _DECODER.raw_decode(self._text, at)
            at, index = self._skip(at), index + 1
            if self._text[at] == ",":
                at = self._skip(at + 1)

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        return at if blank is None else blank.end()


#: The report of a model of 100,000 tensors has 25 MB.
LARGEST_REPORT = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReport:
    """A report with the place it was read from and the digest of its bytes; ``sha256`` is another, in hexadecimal."""

    path: Path
    lines: JsonLines
    digest: str
    sha256: str
    report: PrivacyReport

    def place(self, *steps: Step) -> FileLine:
        """Where the value at ``steps`` (keys and positions) stands."""
        return FileLine(path=str(self.path), line=self.lines.of(steps))

    @property
    def makes(self) -> frozenset[str]:
        """Digests of the weights that this step wrote."""
        return frozenset(a.digest for a in self.report.outputs if a.role == "model")

    @property
    def gives(self) -> frozenset[str]:
        """Digests of what a later step can make a model of: weights and published updates."""
        return frozenset(a.digest for a in self.report.outputs if a.role in ("model", "updates"))

    @property
    def reads(self) -> frozenset[str]:
        """Digests of everything that this step read."""
        return frozenset(a.digest for a in self.report.inputs)

    @property
    def looks_at(self) -> frozenset[str]:
        """Digests of the weights that this step read."""
        return frozenset(a.digest for a in self.report.inputs if a.role == "model")


def read_bounded(path: Path, largest: int, fault: type[PrivctlError] = InputError) -> bytes:
    """The bytes of a regular file of at most ``largest`` bytes; raises ``fault`` with one sentence for anything else.

    Opened without waiting, so that a named pipe stops nobody.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise fault(f"{str(path)!r} is not a file's name") from None
    except FileNotFoundError:
        raise fault(f"{path} is not there; check the path") from None
    except OSError as error:
        raise fault(f"{path} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or is_kernel_file(path):
            raise fault(f"{path} is not a regular file; give a file")
        with os.fdopen(fd, "rb", closefd=False) as stream:
            data = stream.read(largest + 1)
    except OSError as error:
        raise fault(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > largest:
        raise fault(f"{path} has more than {largest >> 20} MiB, which none that privctl writes has")
    return data


def digest_of(data: bytes) -> str:
    """The digest as reports write it."""
    from blake3 import blake3

    return f"blake3:{blake3(data).hexdigest()}"


def load(path: Path, data: bytes) -> LoadedReport:
    """The report in ``data``, which was read from ``path``; raises InputError where it is none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    report = decode(text, str(path))
    return LoadedReport(
        path=path, lines=JsonLines(text), digest=digest_of(data), sha256=sha256(data).hexdigest(), report=report
    )
