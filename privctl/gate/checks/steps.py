"""Required steps, verdicts of reports, and the age of reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.checks.external_scores import FIX, has_external_scores, why_unaccepted
from privctl.gate.checks.permitted import why_permitted
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from verify.audits.terms import MEMBERSHIP

STEPS, AGE, VERDICTS = "required_steps", "max_age_days", "forbid_outcomes"
#: The most by which the clocks of two machines may differ.
_SKEW = timedelta(hours=24)
_COMMANDS = {
    "retrain": "privctl retrain dp-sgd",
    "external-training": "privctl.make_private, in your own training loop",
    "noise": "privctl noise",
    "replay": "privctl retrain ferret --replay",
    "audit": "privctl audit",
    "verify": "privctl verify",
    "inspect": "privctl inspect",
}

_ON = {"verify": "this model's own report"}
_GIVE = {"verify": "what it writes with -o", "inspect": "what it prints with --json"}


def required(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check that each required step is in the model's history or examined the model, and has a result."""
    for step in policy.required_steps:
        done = [report for report in (*case.history, *case.examinations) if report.report.step == step]
        if step == "verify":
            done = case.examining(done)
        completed = [
            report for report in done if not (_why_empty(report.report, case) or why_unaccepted(report, policy))
        ]
        if completed:
            yield Finding(
                rule=STEPS,
                outcome=GateOutcome.PASS,
                subject=step,
                message=f"{step}, at {completed[0].report.created}{_acceptance_remark(completed[0])}",
                place=completed[0].place("step"),
            )
            continue
        unaccepted = why_unaccepted(done[0], policy) if done else ""
        missing = (
            f"its report {_why_empty(done[0].report, case) or unaccepted}"
            if done
            else "no report of this step was given for this model"
        )
        yield Finding(
            rule=STEPS,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=step,
            message=missing,
            fix=FIX
            if unaccepted
            else f"run {_COMMANDS.get(step, step)} on {_ON.get(step, 'this model')} and give "
            + _GIVE.get(step, "its report"),
            place=done[0].place("step") if done else policy.places.get(STEPS, case.default_place),
        )


def _acceptance_remark(report: LoadedReport) -> str:
    """A remark if the step counts because the policy accepts external scores; empty otherwise."""
    return (
        "; that its scores are of this model is asserted, and the policy accepts it"
        if has_external_scores(report)
        else ""
    )


def _why_empty(report: PrivacyReport, case: JudgedModel) -> str:
    """Why a report does not show that its step was done; empty if it does."""
    if report.step == "audit" and all(item.estimate is None for item in report.evidence):
        return "measured nothing"
    if report.step == "audit" and all(item.role != "model" for item in report.inputs):
        return "names no model that it measured"
    settled = (Outcome.PROVED, Outcome.CONSISTENT, Outcome.REFUTED)
    if report.step == "verify" and not any(verdict.outcome in settled for verdict in report.verdicts):
        return "has no conclusive verdict"
    if report.step == "verify" and (skipped := _missing_verdict(report, case)):
        return f"has no verdict on {skipped}"
    return ""


def _missing_verdict(report: PrivacyReport, case: JudgedModel) -> str:
    """The first guarantee or noise of the model's own report without a verdict in this verification, or empty."""
    parent_digests = {parent.digest for parent in report.parents}
    subjects = [verdict.subject for verdict in report.verdicts]
    for maker in case.writers:
        if maker.digest not in parent_digests:
            continue
        names = [guarantee.name for guarantee in maker.report.guarantees]
        if isinstance(maker.report.mechanism, WeightNoise):
            names.append("noise")
        for name, count in Counter(names).items():
            if sum(subject == name or subject.startswith(f"{name}, ") for subject in subjects) < count:
                return repr(name)
    return ""


def verdicts(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the verdicts of every report on this model: a refuted one fails, an inconclusive one may stop the build.

    The verdict that members can be told from non-members fails unless ``permitted.why_permitted`` allows it.
    """
    reports = (*case.writers, *case.examinations)
    stopping = [
        verdict
        for report in reports
        for verdict in stopping_verdicts(report, policy, partial(why_permitted, case, policy, report))
    ]
    yield from stopping
    all_verdicts = [verdict for report in reports for verdict in report.report.verdicts]
    count = sum(_counts(verdict, policy) for verdict in all_verdicts)
    indecisive = len(all_verdicts) - count
    if count and not stopping:
        yield Finding(
            rule=VERDICTS,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"{'the one verdict' if count == 1 else f'each of {count} verdicts'} is other than "
            + " or ".join(policy.forbid_outcomes)
            + (f"; {indecisive} more on guarantees that a report itself marks as only claimed" if indecisive else ""),
            place=next(report for report in reports if report.report.verdicts).place("verdicts"),
        )


def stopping_verdicts(
    report: LoadedReport, policy: Policy, permitted: Callable[[Verdict], str] = lambda _: ""
) -> Iterator[Finding]:
    """A finding for each verdict of ``report`` whose outcome the policy forbids.

    It passes if ``permitted``, called with the verdict, returns a reason.
    """
    for i, verdict in enumerate(report.report.verdicts):
        if verdict.outcome.value not in policy.forbid_outcomes or not _counts(verdict, policy):
            continue
        refuted = verdict.outcome is Outcome.REFUTED
        if allowed := permitted(verdict):
            yield Finding(
                rule=VERDICTS,
                outcome=GateOutcome.PASS,
                subject=verdict.subject,
                message=f"{_word(verdict, report)} by {report.report.step}, as the policy allows: {verdict.reason}; "
                + allowed,
                place=report.place("verdicts", i, "outcome"),
            )
            continue
        yield Finding(
            rule=VERDICTS,
            outcome=GateOutcome.FAIL if refuted else GateOutcome.INCONCLUSIVE,
            subject=verdict.subject,
            message=f"{_word(verdict, report)} by {report.report.step}: {verdict.reason}",
            fix=_safer(verdict, policy) if refuted else "resolve the reason given, and audit again",
            place=report.place("verdicts", i, "outcome"),
        )


def _safer(verdict: Verdict, policy: Policy) -> str:
    advice = "make the model safer and audit again, or accept the leak until a date with a [[waiver]]"
    if verdict.subject == MEMBERSHIP and policy.max_epsilon is not None and policy.max_auc is None:
        return f"also set max_auc: within both limits, a leak that the guarantee allows passes; otherwise {advice}"
    return advice


def _word(verdict: Verdict, report: LoadedReport) -> str:
    return verdict.audit_word.upper() if report.report.step == "audit" else str(verdict.outcome)


def _counts(verdict: Verdict, policy: Policy) -> bool:
    """Whether a verdict counts: one on a guarantee that is only claimed does not, unless the policy counts claims."""
    return verdict.decisive or (verdict.status is not None and verdict.status.value in policy.require)


def age(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check that every report on this model has a valid date and is recent enough.

    If the policy requires an audit log, every audit is given, and only the newest must be recent.
    """
    days = math.inf if policy.max_age_days is None else policy.max_age_days
    logged = sorted(case.audits, key=lambda audit: audit.report.created)[:-1] if policy.require_audit_log else ()
    earlier = {audit.digest for audit in logged}
    late = False
    for report in (*case.writers, *case.examinations):
        reason = _too_old(report, case.now, math.inf if report.digest in earlier else days)
        if reason:
            late = True
            yield Finding(
                rule=AGE,
                outcome=GateOutcome.FAIL,
                subject=str(report.path),
                message=reason,
                fix=f"run the {report.report.step} step again",
                place=report.place("created"),
            )
    if policy.max_age_days is not None and not late and (case.writers or case.examinations):
        yield Finding(
            rule=AGE,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"no report{', except earlier audits,' if earlier else ''} is older than {days:g} "
            f"{'day' if days == 1 else 'days'}",
            place=case.default_place,
        )


def _too_old(report: LoadedReport, now: datetime, days: float) -> str:
    created = report.report.created
    try:
        written = datetime.fromisoformat(created)
    except ValueError:
        return f"its date {created!r} is not valid"
    written = written.replace(tzinfo=UTC) if written.tzinfo is None else written
    if written - now > _SKEW:
        return f"its date {created} is in the future"
    old = (now - written) / timedelta(days=1)
    return f"it is {counted(round(old), 'day')} old, and the policy allows {days:g}" if old > days else ""
