"""The audit log: whether it is complete and contains the audits given, and whether each audit's report was given.

The chain of digests in a log shows that no line was removed. Only a head that was kept (``audit_log_head``) or signed
(``require_signer``) shows that the log was not rewritten from the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from privctl.domain.errors import CommandError, InputError, PrivctlError
from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.domain.shown import counted
from privctl.gate.files import LoadedReport, read_bounded
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.signatures import first_accepted
from privctl.reports.audit_log import AuditLog, Entry, LoggedAudit, read_log, tensors_digest
from privctl.reports.signing import LARGEST, Signer, signed_head, signer

LOG, SHOWN, HEAD = "require_audit_log", "audits_shown", "audit_log_head"
_HEAD = re.compile(r"blake3:[0-9a-f]{64}")
_LARGEST_HEAD = 1 << 12
_SAME_LOG = "give the unchanged log in which privctl recorded every audit of this model"
_FAIL, _INCONCLUSIVE = GateOutcome.FAIL, GateOutcome.INCONCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class _AuditInLog:
    """One audit of this model with the log that records it."""

    log: AuditLog
    audit: LoggedAudit

    @property
    def subject(self) -> str:
        """The line's number and digest, so that a waiver covers only this audit."""
        begun = self.audit.begun
        return f"{self.log.path.name} line {begun.number} ({begun.digest.removeprefix('blake3:')[:12]})"

    @property
    def place(self) -> FileLine:
        """The line of the log at which the audit begins."""
        return FileLine(path=str(self.log.path), line=self.audit.begun.number)


def check_logs(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check that the logs can be read, contain the earlier heads, are signed, and agree with each audit given."""
    if not policy.require_audit_log:
        return
    logs, faults = _read_logs(policy)
    faults += [*_check_heads(logs, policy), *_signatures(logs, policy)]
    known = {audit.begun.digest: audit for log in logs for audit in log.audits}
    faults += [_fault(*mismatch) for report in case.audits for mismatch in _log_mismatches(report, known) if logs]
    yield from faults
    torn = [log for log in logs if log.torn]
    for log in torn:
        message = f"its last line is cut off, after line {len(log.entries)}: an audit may be missing"
        yield _fault(str(log.path), message, FileLine(path=str(log.path), line=len(log.entries)), _INCONCLUSIVE)
    for log in logs if not (faults or torn) else ():
        mine = sum(audit.log is log for audit in _audits_of_model(case, logs))
        yield Finding(
            rule=LOG,
            outcome=GateOutcome.PASS,
            subject=str(log.path),
            message=(
                f"{counted(mine, 'audit')} of this model and {len(log.audits) - mine} of others; keep its head to "
                f"check later that no line was changed: line {len(log.entries)}, {log.head}"
            ),
            place=FileLine(path=str(log.path), line=len(log.entries)),
        )


def check_reports_given(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check that the report of every audit of this model in the logs was given."""
    logs, _ = _read_logs(policy)
    if not logs:
        return
    given = {report.digest for report in case.audits}
    mine = _audits_of_model(case, logs)
    missing = [audit for audit in mine if audit.audit.report not in given]
    largest = _largest_values(mine, given)
    for entry in missing:
        outcome, message, fix = _missing_audit(entry.audit, largest)
        newest = " (the newest)" if entry is mine[-1] and len(mine) > 1 else ""
        yield Finding(
            rule=SHOWN, outcome=outcome, subject=entry.subject, message=message + newest, fix=fix, place=entry.place
        )
    if not mine:
        yield Finding(
            rule=SHOWN,
            outcome=_INCONCLUSIVE,
            subject=case.name,
            message="no audit of this model is in the log",
            fix="audit it (privctl audit --log)",
            place=policy.places.get(LOG, case.default_place),
        )
    elif not missing:
        count = "the one audit" if len(mine) == 1 else f"each of {len(mine)} audits"
        yield Finding(
            rule=SHOWN,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"the report of {count} of this model in the log was given",
            place=mine[-1].place,
        )


def _read_logs(policy: Policy) -> tuple[list[AuditLog], list[Finding]]:
    logs: list[AuditLog] = []
    faults: list[Finding] = []
    for path in map(Path, policy.require_audit_log):
        try:
            logs.append(read_log(path))
        except PrivctlError as fault:
            outcome = _FAIL if isinstance(fault, InputError) and os.path.isfile(path) else _INCONCLUSIVE
            faults.append(_fault(str(path), str(fault), FileLine(path=str(path)), outcome))
    return logs, faults


def _check_heads(logs: list[AuditLog], policy: Policy) -> Iterator[Finding]:
    """An earlier head must still be a line of a log: a log that was cut, forked or rewritten lacks it."""
    for text in policy.audit_log_head:
        head = text if _HEAD.fullmatch(text) else _head_in(Path(text))
        if logs and not any(log.holds(head) for log in logs):
            names = ", ".join(str(log.path) for log in logs)
            message = f"it does not contain the earlier head {head}: it was cut short or rewritten, or is another log"
            yield _fault(names, message, FileLine(path=str(logs[0].path)))


def _head_in(path: Path) -> str:
    """The head in the file at ``path``. Raises CommandError if there is none."""
    if not os.path.lexists(path):
        raise CommandError(
            f"{HEAD} {path} is neither a head of a log nor a file that contains one; expected blake3: and 64 "
            "hexadecimal digits, as the gate prints it"
        )
    head = _HEAD.search(read_bounded(path, _LARGEST_HEAD, CommandError).decode("utf-8", "replace"))
    if head is None:
        raise CommandError(
            f"{HEAD} {path} contains no head of a log; expected blake3: and 64 hexadecimal digits, as a gate prints it"
        )
    return head[0]


def _signatures(logs: list[AuditLog], policy: Policy) -> Iterator[Finding]:
    if not policy.require_signer:
        return
    try:
        signers = [
            signer(Path(name), read_bounded(Path(name), LARGEST, CommandError)) for name in policy.require_signer
        ]
    except ImportError:
        return  # reported by the rule on signatures
    for log in logs:
        place = FileLine(path=str(log.path), line=len(log.entries))
        try:
            _, entry = first_accepted(log.path, partial(_signer_of_head, signers, log))
        except InputError as fault:
            yield _fault(str(log.path), f"no signer that the policy trusts signed its head: {fault}", place)
            continue
        if entry.digest != log.head:
            message = f"it is signed up to line {entry.number} of {len(log.entries)}; sign it again"
            yield _fault(str(log.path), message, place)


def _signer_of_head(signers: Sequence[Signer], log: AuditLog, signature: bytes) -> tuple[Signer, Entry]:
    return signed_head(signature, signers, log)


def _log_mismatches(report: LoadedReport, known: Mapping[str, LoggedAudit]) -> Iterator[tuple[str, str, FileLine]]:
    """How the logs contradict a report given; ``known`` has their audits by the digest of the first line of each."""
    position = report.report.log
    audit = None if position is None else known.get(position.digest)
    message = ""
    if position is None:
        message = "this audit was not recorded in a log"
    elif audit is None:
        message = "the line that this audit names is not in the log: the audit was recorded in another log"
    elif audit.report is None:
        message = "according to the log, this audit produced no report"
    elif audit.report != report.digest:
        message = "according to the log, this audit produced another report: the digest differs"
    elif audit.weights != report.weights_read:
        message = "according to the log, this audit was of other weights"
    if message:
        yield str(report.path), message, report.place("log")


def _audits_of_model(case: JudgedModel, logs: list[AuditLog]) -> list[_AuditInLog]:
    """The audits of these weights, including audits of the same tensors in other files."""
    same = set()
    for writer in (*case.writers, *case.examinations):
        for listed in (writer.report.inputs, writer.report.outputs):
            files = [item for item in listed if item.role == "model" and item.tensors]
            if {item.digest for item in files} == case.digests:
                same.add(tensors_digest(tensor for item in files for tensor in item.tensors))
    return [
        _AuditInLog(log=log, audit=audit)
        for log in logs
        for audit in log.audits
        if audit.weights == case.digests or audit.begun.details["tensors"] in same
    ]


def _largest_values(mine: Sequence[_AuditInLog], given: set[str]) -> dict[str, float]:
    """The largest value of each quantity that the audits given measured, according to the log."""
    largest: dict[str, float] = {}
    for audit in mine:
        if audit.audit.end is not None and audit.audit.report in given:
            for name, value in audit.audit.end.details["worst"].items():
                largest[name] = max(value, largest.get(name, value))
    return largest


def _missing_audit(audit: LoggedAudit, most: Mapping[str, float]) -> tuple[GateOutcome, str, str]:
    """Outcome, message and fix for an audit whose report was not given; ``most``: largest values in those given."""
    begun, end = audit.begun, audit.end
    again = "audit again, give every report, and account for this line with a [[waiver]]"
    if end is None:
        return _FAIL, f"an audit begun at {begun.at} has no report, and the log does not say why", again
    if audit.report is None:
        return _INCONCLUSIVE, f"an audit begun at {begun.at} ended without a report: {end.details['reason']}", again
    message = f"the audit begun at {begun.at} produced a report that was not given, {audit.report}"
    worse = [
        f"{name} {value:.4g}, and at most {most[name]:.4g} in the reports given"
        for name, value in sorted(end.details["worst"].items())
        if value > most.get(name, value)
    ]
    if worse:
        message += f"; according to the log it found more: {'; '.join(worse[:3])}"
    return _FAIL, message, "give that report too"


def _fault(subject: str, message: str, place: FileLine, outcome: GateOutcome = _FAIL) -> Finding:
    return Finding(rule=LOG, outcome=outcome, subject=subject, message=message, fix=_SAME_LOG, place=place)
