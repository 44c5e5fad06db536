"""Reading reports for the gate: regular files of bounded size, hashed and decoded in one read, with line numbers."""

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
from privctl.reports.codec import decode_bytes
from privctl.storage.reader import is_kernel_file

#: A key of an object or an index of a list.
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
        """The line, from 1, of the value at ``steps``, or of its innermost ancestor that exists.

        ``JsonLines('{"a":\\n [1,\\n 2]}').of(["a", 1])`` is 3.
        """
        offset = self._skip(0)
        for step in steps:
            if offset not in self._inside:
                self._inside[offset] = dict(self._members(offset))
            position = self._inside[offset].get(step)
            if position is None:
                break
            offset = position
        if self._ends is None:
            self._ends = [position.start() for position in re.finditer("\n", self._text)]
        return bisect_left(self._ends, offset) + 1

    def _members(self, offset: int) -> Iterator[tuple[Step, int]]:
        """The members of the object or the items of the list that begins at ``offset``; none of anything else."""
        opening = self._text[offset]
        if opening not in "{[":
            return
        offset, index = self._skip(offset + 1), 0
        while self._text[offset] not in "}]":
            step: Step = index
            if opening == "{":
                step, offset = _DECODER.raw_decode(self._text, offset)
                offset = self._skip(self._skip(offset) + 1)  # the colon
            yield step, offset
            _, offset = _DECODER.raw_decode(self._text, offset)
            offset, index = self._skip(offset), index + 1
            if self._text[offset] == ",":
                offset = self._skip(offset + 1)

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        return at if blank is None else blank.end()


#: In bytes; the report of a model of 100,000 tensors has 25 MB.
LARGEST_REPORT = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReport:
    """A report with its path and the digests of its bytes, ``digest`` as reports write it and ``sha256`` in hex."""

    path: Path
    lines: JsonLines
    digest: str
    sha256: str
    report: PrivacyReport

    def place(self, *steps: Step) -> FileLine:
        """The file and line of the value at ``steps`` (keys and indices)."""
        return FileLine(path=str(self.path), line=self.lines.of(steps))

    @property
    def weights_written(self) -> frozenset[str]:
        """The digests of the weights that this step wrote."""
        return frozenset(a.digest for a in self.report.outputs if a.role == "model")

    @property
    def released(self) -> frozenset[str]:
        """The digests of what a later step can make a model from: weights and published updates."""
        return frozenset(a.digest for a in self.report.outputs if a.role in ("model", "updates"))

    @property
    def inputs_read(self) -> frozenset[str]:
        """The digests of everything that this step read."""
        return frozenset(a.digest for a in self.report.inputs)

    @property
    def weights_read(self) -> frozenset[str]:
        """The digests of the weights that this step read."""
        return frozenset(a.digest for a in self.report.inputs if a.role == "model")


def read_bounded(path: Path, largest: int, fault: type[PrivctlError] = InputError) -> bytes:
    """Read a regular file of at most ``largest`` bytes. Raises ``fault`` for anything else.

    The file is opened with O_NONBLOCK, so that a named pipe does not block.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise fault(f"{str(path)!r} is not a file name") from None
    except FileNotFoundError:
        raise fault(f"{path} does not exist; check the path") from None
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
        raise fault(f"{path} has more than {largest >> 20} MiB; no such file that privctl writes is as large")
    return data


def digest_of(data: bytes) -> str:
    """The BLAKE3 digest of ``data`` as reports write it: ``blake3:`` and hexadecimal digits."""
    from blake3 import blake3

    return f"blake3:{blake3(data).hexdigest()}"


def load(path: Path, data: bytes) -> LoadedReport:
    """Decode the report in ``data``, which was read from ``path``. Raises InputError if it is not a report."""
    report = decode_bytes(data, str(path))
    return LoadedReport(
        path=path,
        lines=JsonLines(data.decode()),
        digest=digest_of(data),
        sha256=sha256(data).hexdigest(),
        report=report,
    )
