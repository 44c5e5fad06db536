"""Where an audit stands in its log, and whether the log still says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.report import LogPosition, Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_log import AuditLog, read_log
from privctl.storage.digest import bytes_digest
from privctl.storage.reader import read_named_bytes


def check_log(path: Path, report: PrivacyReport) -> tuple[list[Verdict], list[Omission]]:
    """The log of audits in which the report at ``path`` says it stands; that it is not at hand is no fault."""
    if report.log is None:
        return [], []
    place = Path(os.path.normpath(path.parent.absolute() / report.log.path))
    if not os.path.isfile(place):
        return [], [Omission(what=f"the log of audits {report.log.path}", reason="it is not at hand")]
    try:
        log = read_log(place)
        found = list(_standing(log, report.log, bytes_digest(read_named_bytes(path))))
    except InputError as fault:
        return [Verdict(subject=report.log.path, outcome=Outcome.REFUTED, reason=str(fault))], []
    except PrivctlError as fault:
        return [], [Omission(what=f"the log of audits {report.log.path}", reason=str(fault))]
    return found, []


def _standing(log: AuditLog, said: LogPosition, digest: str) -> Iterator[Verdict]:
    audit = next((each for each in log.audits if each.begun.digest == said.digest), None)
    outcome = Outcome.REFUTED
    if audit is None or audit.begun.number != said.entry:
        reason = f"its line {said.entry} is not the one that the report names: it is another log, or was written anew"
    elif audit.report is None:
        outcome = Outcome.INCONCLUSIVE
        reason = f"it says at line {said.entry} that this audit began, and not that it led to a report"
    elif audit.report != digest:
        reason = f"it says that the audit begun at line {said.entry} led to another report than this one"
    else:
        others = len(log.audits) - 1
        outcome = Outcome.CONSISTENT
        reason = (
            f"the audit stands at line {said.entry} of {len(log.entries)}, beside {others} other audit"
            f"{'' if others == 1 else 's'}; whoever holds the log can have written it anew, unless its head is kept"
        )
    yield Verdict(subject=said.path, outcome=outcome, reason=reason)
