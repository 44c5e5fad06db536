"""Recomputing guarantees: a report that claims more than follows from its own mechanism does not pass.

This is the part of ``privctl verify`` that needs no weights: both run the list in ``verify.checks``. It shows that the
numbers of a report follow from its mechanism, not that the training it describes took place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from privctl.domain.errors import PrivctlError, missing_package
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.report import TRAININGS, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.parameters import ParametersError
from privctl.storage.digest import NamedFiles
from verify.audits import consistency as audit_consistency
from verify.audits.asked import unanswered_claims
from verify.audits.canaries.conditions import check_named
from verify.audits.canaries.guesses import check_guesses
from verify.audits.extraction.known_elsewhere import check_reference
from verify.audits.kept_request import request_mismatches
from verify.audits.split.drawn import check_split, check_unseen

RULE = "recomputed"
#: A check of an audit's report at a path, with the reports that it builds on.
_Check = Callable[[Path, PrivacyReport, Sequence[PrivacyReport]], Iterator[Verdict]]


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Recompute every guarantee that the policy could count from its report, and check audits for contradictions."""
    if not policy.recompute:
        return
    for report in case.audits:
        try:
            faults = [f"the audit contradicts itself: {fault}" for fault in audit_consistency.faults(report.report)]
            faults += request_mismatches(report.path, report.report, NamedFiles())
        except ParametersError as fault:
            faults = [f"the audit cannot be read: {fault}"]
        yield from (_finding(report, message, GateOutcome.FAIL, _FIX, "evidence") for message in faults)
        guessed = check_guesses(report.path, report.report, ())
        parent_digests = {parent.digest for parent in report.report.parents}
        parents = [writer.report for writer in case.writers if writer.digest in parent_digests]
        silent = unanswered_claims(report.path, report.report, parents)
        against = _against_files(report, parents)
        beside = (verdict for verdict in against if verdict.outcome is Outcome.REFUTED and verdict.reason not in faults)
        yield from (_as_finding(report, verdict, "evidence") for verdict in (*guessed, *silent, *beside))
    if policy.max_epsilon is None and policy.max_posterior is None and policy.field is None:
        return
    # For noise, the unit of privacy is stated in the training's report, which may have no guarantee itself.
    whose = TRAININGS if policy.field is not None else ()
    reports = [
        report for report in (*case.writers, *case.inherited) if report.report.guarantees or report.report.step in whose
    ]
    try:
        # Imported here: it needs numpy and scipy, which a gate that judges only audits does not.
        from verify.checks import recompute
    except ImportError as missing:
        if reports:
            yield _finding(
                reports[0],
                f"guarantees cannot be recomputed because {missing_package(missing) or 'a package'} is not installed",
                GateOutcome.INCONCLUSIVE,
                "install privctl with all its dependencies, or set recompute = false in the policy",
            )
        return
    findings: list[Finding] = []
    for report in reports:
        parents = [parent.report for parent in case.history if parent is not report]
        try:
            verdicts = recompute(report.path, report.report, parents)
        except PrivctlError as fault:
            findings.append(_finding(report, f"it cannot be recomputed: {fault}", GateOutcome.INCONCLUSIVE, _FIX))
            continue
        findings += [_as_finding(report, verdict) for verdict in verdicts if _stops(verdict)]
    if reports and not findings:
        count = sum(len(report.report.guarantees) for report in reports)
        yield Finding(
            rule=RULE,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"{'the guarantee was' if count == 1 else f'{count} guarantees were'} recomputed from what the "
            f"{'report says' if len(reports) == 1 else 'reports say'} was done",
            place=reports[0].place("guarantees"),
        )
    yield from findings


def missing_for_files() -> str:
    """The package without which audits are not compared with the ranks and scores that they kept; "" if there is none.

    A gate without numpy still judges audits, by what their reports say.
    """
    try:
        _checks_of_files()
    except ImportError as missing:
        return missing_package(missing) or "a package that cannot be imported"
    return ""


def _checks_of_files() -> list[_Check]:
    """The checks of an audit against its files. Raises ImportError without numpy or scipy."""
    from verify.audits.evidence import check_evidence
    from verify.audits.groups import check_groups
    from verify.warned.check import check_warnings

    def check_kept(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
        yield from check_evidence(path, report, NamedFiles()).verdicts

    return [check_groups, check_warnings, check_kept]


def _against_files(audit: LoadedReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Verdicts on an audit from its split, its files that exist, its training, and the warnings that it must state.

    The ranks or scores that it kept, if they are present, give its figures again.
    """
    checks: list[_Check] = [check_split, check_unseen, check_reference, check_named]
    with suppress(ImportError):  # said in a note
        checks += _checks_of_files()
    for check in checks:
        try:
            yield from check(audit.path, audit.report, parents)
        except (PrivctlError, LookupError) as fault:
            reason = f"its files do not contain what the report says ({fault})"
            yield Verdict(subject="audit", outcome=Outcome.REFUTED, reason=reason)


_FIX = "use the report as privctl wrote it, or run the step again; privctl verify gives details"


def _stops(verdict: Verdict) -> bool:
    """Whether a verdict stops the build; one on a guarantee that is only claimed does not."""
    return verdict.decisive and verdict.outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE)


def _as_finding(report: LoadedReport, verdict: Verdict, where: str = "guarantees") -> Finding:
    refuted = verdict.outcome is Outcome.REFUTED
    return _finding(
        report,
        f"{verdict.subject}: {'does not follow' if refuted else 'cannot be decided'}: {verdict.reason}",
        GateOutcome.FAIL if refuted else GateOutcome.INCONCLUSIVE,
        _FIX,
        where,
    )


def _finding(report: LoadedReport, message: str, outcome: GateOutcome, fix: str, where: str = "guarantees") -> Finding:
    return Finding(
        rule=RULE,
        outcome=outcome,
        subject=str(report.path),
        message=message,
        fix=fix,
        place=report.place(where),
    )
