"""The log of a model's audits: each is recorded when it begins and when it ends, so that a missing report shows.

Each line is a JSON object that contains the digest of the line before it and ends with its own. An audit is recorded
before the first attack reads the model, so that an abandoned audit leaves a trace, and again when its report is
written.

The log cannot prevent audits that are recorded in another log or in none, nor that its owner rewrites it from the
start. The latter is detected if somebody else keeps the digest of an earlier line, the head (``privctl sign`` over the
log, ``audit_log_head`` of a gate).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from blake3 import blake3

from privctl.domain.errors import InputError
from privctl.domain.report import Artifact, LogPosition, TensorDigest
from privctl.domain.version import VERSION
from privctl.storage.digest import tag
from privctl.storage.hash_chain import BrokenChainError, Chain, log_file
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_named_bytes

LOG_SUFFIX = ".audits.jsonl"
#: The prefix of the log's digests wherever they are shown.
PREFIX = "blake3:"
_CHAIN = Chain(root=blake3(b"privctl log of audits 1").hexdigest(), prefix=b',"digest":"', suffix=b'"}')
#: The beginning of the first line.
_FIRST = b'{"entry":1,'
#: Largest log in bytes; a model has some dozen audits, each with two lines of some hundred bytes.
_LARGEST = 8 << 20
_LONGEST_REASON = 300
#: JSON may hold integers that no float can represent.
_LARGEST_NUMBER = 1e300


class AuditEvent(StrEnum):
    """The event of a line: the log was opened, an audit begun, its report written, or it ended without a report."""

    OPENED = "opened"
    BEGUN = "begun"
    WRITTEN = "written"
    ENDED = "ended"


#: The fields of every line, and the additional fields of each event with their types in JSON.
_COMMON_FIELDS = ("entry", "previous", "event", "at")
_DETAILS: dict[AuditEvent, dict[str, type]] = {
    AuditEvent.OPENED: {"id": str},
    AuditEvent.BEGUN: {"id": str, "privctl": str, "folder": str, "weights": list, "tensors": str, "settings": dict},
    AuditEvent.WRITTEN: {"begun": int, "report": str, "refuted": int, "worst": dict},
    AuditEvent.ENDED: {"begun": int, "reason": str},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: its ``number`` from 1, its ``digest``, its time ``at`` (UTC, ISO 8601), and the event's ``details``."""

    number: int
    digest: str
    event: AuditEvent
    at: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAudit:
    """One audit: the line of its beginning, and that of its end, if there is one."""

    begun: Entry
    end: Entry | None = None

    @property
    def report(self) -> str | None:
        """The digest of its report; None if none was written."""
        written = self.end is not None and self.end.event is AuditEvent.WRITTEN
        return str(self.end.details["report"]) if self.end is not None and written else None

    @property
    def weights(self) -> frozenset[str]:
        """Digests of the weight files that were audited."""
        return frozenset(self.begun.details["weights"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """A log with an intact chain, read from ``path``; ``content`` is its complete lines.

    ``torn`` says that an incomplete line follows them.
    """

    path: Path
    content: bytes = field(repr=False)
    entries: tuple[Entry, ...]
    torn: bool = False

    @property
    def head(self) -> str:
        """The digest of the last line, which covers all lines."""
        return self.entries[-1].digest

    @property
    def audits(self) -> tuple[LoggedAudit, ...]:
        """Every audit that was begun, in order."""
        ends = {
            entry.details["begun"]: entry
            for entry in self.entries
            if entry.event in (AuditEvent.WRITTEN, AuditEvent.ENDED)
        }
        return tuple(
            LoggedAudit(begun=entry, end=ends.get(entry.number))
            for entry in self.entries
            if entry.event is AuditEvent.BEGUN
        )

    def holds(self, digest: str) -> Entry | None:
        """The line with this digest; None if there is none."""
        return next((entry for entry in self.entries if entry.digest == digest), None)


def read_log(path: Path) -> AuditLog:
    """The log at ``path``. Raises InputError if it is missing, not a log, or was tampered with."""
    log = _parse(path, read_named_bytes(path))
    if not log.entries:
        raise InputError(f"{path} holds no entry, which no log of audits does; restore it as privctl wrote it")
    return log


def begin(path: Path, inputs: Sequence[Artifact], settings: Mapping[str, Any]) -> Entry:
    """Record the beginning of an audit of the model with the files ``inputs``, and return the line, synced to disk.

    The log is created if it does not exist. Raises InputError for a log that was tampered with, FileSystemError if it
    cannot be written.
    """
    details = {
        "id": secrets.token_hex(16),  # lines of two forks of a log must differ even with equal fields
        "privctl": VERSION,
        "folder": folder_digest(inputs),
        "weights": sorted(item.digest for item in inputs if item.role == "model"),
        "tensors": tensors_digest(tensor for item in inputs if item.role == "model" for tensor in item.tensors),
        "settings": dict(settings),
    }
    return _enter(path, AuditEvent.BEGUN, details)


def is_log(path: Path) -> bool:
    """Whether the file at ``path`` begins like a log of audits, or cannot be read, which ``read_log`` then reports."""
    try:
        with path.open("rb") as file:
            return _FIRST.startswith(file.read(len(_FIRST)))
    except OSError:
        return True


def finish(path: Path, begun: LogPosition, *, report: str, refuted: int, worst: Mapping[str, float]) -> Entry:
    """Record the digest of the ``report`` of the audit that began at ``begun``.

    ``refuted`` is the number of its verdicts REFUTED; ``worst`` has the largest measured value of each quantity. Raises
    InputError if the log no longer contains ``begun``.
    """
    details = {"begun": begun.entry, "report": report, "refuted": refuted, "worst": dict(worst)}
    return _enter(path, AuditEvent.WRITTEN, details, known=begun.digest)


def abandon(path: Path, begun: LogPosition, reason: str) -> Entry:
    """Record that the audit that began at ``begun`` ended without a report; raises InputError as ``finish`` does."""
    details = {"begun": begun.entry, "reason": reason[:_LONGEST_REASON]}
    return _enter(path, AuditEvent.ENDED, details, known=begun.digest)


def folder_digest(inputs: Sequence[Artifact]) -> str:
    """A digest of all files of a model with their names, regardless of order."""
    rows = sorted(f"{item.digest} {Path(item.path).name}\n" for item in inputs)
    return tag(blake3("".join(rows).encode()))


def tensors_digest(tensors: Any) -> str:
    """A digest of all tensors with name, type and shape, however they are distributed over files."""
    listed: list[TensorDigest] = sorted(tensors, key=lambda tensor: tensor.name)
    rows = (f"{tensor.digest} {tensor.dtype} {list(tensor.shape)} {json.dumps(tensor.name)}\n" for tensor in listed)
    return tag(blake3("".join(rows).encode()))


def _enter(path: Path, event: AuditEvent, details: Mapping[str, Any], known: str | None = None) -> Entry:
    with log_file(path) as file:
        content = file.content()
        log = _parse(path, content) if content else None
        if known is not None and (log is None or log.holds(known) is None):
            raise InputError(f"{path} is not the log that this audit was entered into any more; restore that one")
        if log is not None and log.torn:
            file.cut(len(log.content))
        last = None if log is None or not log.entries else log.entries[-1]
        if last is None:
            last = _add(file.add, None, AuditEvent.OPENED, {"id": secrets.token_hex(16)})
        entry = _add(file.add, last, event, details)
        file.sync()
        return entry


def _add(write: Any, last: Entry | None, event: AuditEvent, details: Mapping[str, Any]) -> Entry:
    number = 1 if last is None else last.number + 1
    head = _CHAIN.root if last is None else last.digest.removeprefix(PREFIX)
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"entry": number, "previous": PREFIX + head, "event": event.value, "at": time, **details}
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    line, digest = _CHAIN.line(head, text.removesuffix("}").encode())
    write(line)
    return Entry(number=number, digest=PREFIX + digest, event=event, at=time, details=details)


def _parse(path: Path, content: bytes) -> AuditLog:
    """The log in ``content``, after checking its chain; without entries if not even the first line is complete."""
    if len(content) > _LARGEST:
        raise InputError(f"{path} has more than {_LARGEST >> 20} MiB, which no log of audits has; name another file")
    try:
        links, rest = _CHAIN.read(content)
    except BrokenChainError as broken:
        if broken.number == 1 and not content.startswith(_FIRST):
            raise InputError(f"{path} is no log of audits; give the file that privctl audit --log wrote") from None
        raise _tampered_error(path, broken.number, "does not follow from the lines before it") from None
    entries: list[Entry] = []
    open_audits: set[int] = set()
    for number, link in enumerate(links, start=1):
        entry = _entry(
            path,
            number,
            link.body,
            PREFIX + link.digest,
            PREFIX + (links[number - 2].digest if number > 1 else _CHAIN.root),
        )
        if (entry.event is AuditEvent.OPENED) != (number == 1):
            what = "comes before the one that opens the log" if number == 1 else "opens the log a second time"
            raise _tampered_error(path, number, what)
        if entry.event is AuditEvent.BEGUN:
            open_audits.add(number)
        elif entry.event is not AuditEvent.OPENED:
            if entry.details["begun"] not in open_audits:
                raise _tampered_error(path, number, "ends an audit that was not begun or has ended")
            open_audits.remove(entry.details["begun"])
        entries.append(entry)
    whole = content[: len(content) - len(rest)]
    return AuditLog(path=path, content=whole, entries=tuple(entries), torn=bool(rest))


def _entry(path: Path, number: int, body: bytes, digest: str, previous: str) -> Entry:
    """The entry in a line. Raises InputError for one that privctl does not write, since anybody can chain lines."""
    fields = parse_json((body + b"}").decode("utf-8", "replace"), f"{path} line {number}")
    known = isinstance(fields, dict) and fields.get("event") in set(AuditEvent)
    event = AuditEvent(fields["event"]) if known else AuditEvent.OPENED
    wanted = {"entry": int, "previous": str, "event": str, "at": str, **_DETAILS[event]}
    fits = known and all(isinstance(fields.get(name), kind) for name, kind in wanted.items())
    if (
        not fits
        or not all(isinstance(digest, str) for digest in fields.get("weights", ()))
        or not _are_numbers(fields.get("worst"))
    ):
        raise InputError(f"{path} line {number} is no entry of this version; use the privctl that wrote it, or a later")
    if fields["entry"] != number or fields["previous"] != previous:
        raise _tampered_error(path, number, "does not name the line before it")
    details = {name: value for name, value in fields.items() if name not in _COMMON_FIELDS}
    return Entry(number=number, digest=digest, event=event, at=fields["at"], details=details)


def _are_numbers(worst: Any) -> bool:
    values = worst.values() if isinstance(worst, dict) else ()
    return all(isinstance(value, int | float) and abs(value) < _LARGEST_NUMBER for value in values)


def _tampered_error(path: Path, number: int, what: str) -> InputError:
    return InputError(
        f"{path} line {number} {what}: a line was changed, left out or moved; restore the log as privctl wrote it"
    )
