"""What was done with a model and when: required steps, verdicts, and the age of reports."""

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
from privctl.gate.checks.outside_scores import FIX, are_outside, why_unaccepted
from privctl.gate.checks.permitted import why_permitted
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from verify.audits.consistency import MEMBERSHIP

STEPS, AGE, VERDICTS = "required_steps", "max_age_days", "forbid_outcomes"
#: Clocks of two machines may differ by so much.
_SKEW = timedelta(hours=24)
_COMMANDS = {
    "retrain": "privctl retrain dp-sgd",
    "external-training": "privctl.make_private, in a loop of your own",
    "noise": "privctl noise",
    "replay": "privctl retrain ferret --replay",
    "audit": "privctl audit",
    "verify": "privctl verify",
    "inspect": "privctl inspect",
}

_ON = {"verify": "this model's own report"}
_GIVE = {"verify": "what it writes with -o", "inspect": "what it prints with --json"}


def required(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Whether every required step is in the model's history or examined the model, and has a result."""
    for step in policy.required_steps:
        done = [each for each in (*case.history, *case.looks) if each.report.step == step]
        if step == "verify":
            done = case.verifying(done)
        completed = [each for each in done if not (_why_empty(each.report, case) or why_unaccepted(each, policy))]
        if completed:
            yield Finding(
                rule=STEPS,
                outcome=GateOutcome.PASS,
                subject=step,
                message=f"{step}, at {completed[0].report.created}{_on_whose_word(completed[0])}",
                place=completed[0].place("step"),
            )
            continue
        unaccepted = why_unaccepted(done[0], policy) if done else ""
        missing = (
            f"its report {_why_empty(done[0].report, case) or unaccepted}"
            if done
            else "no report given of this model is of this step"
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
            place=done[0].place("step") if done else policy.places.get(STEPS, case.anchor),
        )


def _on_whose_word(report: LoadedReport) -> str:
    """What the policy accepted for the step to count, in words."""
    return "; that its scores are of this model is asserted, as the policy accepts" if are_outside(report) else ""


def _why_empty(report: PrivacyReport, case: JudgedModel) -> str:
    """Why a report does not show that its step was done; empty where it does."""
    if report.step == "audit" and all(item.estimate is None for item in report.evidence):
        return "measured nothing"
    if report.step == "audit" and all(item.role != "model" for item in report.inputs):
        return "names no model that it measured"
    settled = (Outcome.PROVED, Outcome.CONSISTENT, Outcome.REFUTED)
    if report.step == "verify" and not any(verdict.outcome in settled for verdict in report.verdicts):
        return "settles nothing"
    if report.step == "verify" and (skipped := _missing_verdict(report, case)):
        return f"has no verdict on {skipped}"
    return ""


def _missing_verdict(report: PrivacyReport, case: JudgedModel) -> str:
    """The first part of the model's own report without a verdict in this verification; empty if none lacks one."""
    looked = {parent.digest for parent in report.parents}
    subjects = [verdict.subject for verdict in report.verdicts]
    for maker in case.makers:
        if maker.digest not in looked:
            continue
        names = [each.name for each in maker.report.guarantees]
        if isinstance(maker.report.mechanism, WeightNoise):
            names.append("noise")
        for name, count in Counter(names).items():
            if sum(subject == name or subject.startswith(f"{name}, ") for subject in subjects) < count:
                return repr(name)
    return ""


def verdicts(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Verdicts of every report on this model; a refuted one fails, an inconclusive one may stop the build.

    That members can be told from non-members fails only where it is more than ``permitted.why_permitted`` allows.
    """
    reports = (*case.makers, *case.looks)
    stopping = [
        each
        for report in reports
        for each in stopping_verdicts(report, policy, partial(why_permitted, case, policy, report))
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
            + (f"; {indecisive} more on what a report itself calls no more than claimed" if indecisive else ""),
            place=next(report for report in reports if report.report.verdicts).place("verdicts"),
        )


def stopping_verdicts(
    report: LoadedReport, policy: Policy, permitted: Callable[[Verdict], str] = lambda _: ""
) -> Iterator[Finding]:
    """The verdicts of ``report`` with an outcome that the policy forbids; those ``permitted``, with a reason, pass."""
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
            fix=_safer(verdict, policy) if refuted else "remove the reason named, and audit again",
            place=report.place("verdicts", i, "outcome"),
        )


def _safer(verdict: Verdict, policy: Policy) -> str:
    advice = "make the model safer and audit again, or accept it for a time with a [[waiver]]"
    if verdict.subject == MEMBERSHIP and policy.max_epsilon is not None and policy.max_auc is None:
        return f"set max_auc too: within both limits, a leak that the guarantee allows passes; else {advice}"
    return advice


def _word(verdict: Verdict, report: LoadedReport) -> str:
    return verdict.audit_word.upper() if report.report.step == "audit" else str(verdict.outcome)


def _counts(verdict: Verdict, policy: Policy) -> bool:
    """Whether a verdict matters: it does not where its guarantee is only claimed and the policy counts no claims."""
    return verdict.decisive or (verdict.status is not None and verdict.status.value in policy.require)


def age(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Whether every report of this model has a possible date, and is young enough.

    Where the policy requires a log of audits, every audit is given, and only the newest must be young.
    """
    days = math.inf if policy.max_age_days is None else policy.max_age_days
    logged = sorted(case.audits, key=lambda each: each.report.created)[:-1] if policy.require_audit_log else ()
    earlier = {each.digest for each in logged}
    late = False
    for report in (*case.makers, *case.looks):
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
    if policy.max_age_days is not None and not late and (case.makers or case.looks):
        yield Finding(
            rule=AGE,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"no report{', but for earlier audits,' if earlier else ''} is older than {days:g} "
            f"{'day' if days == 1 else 'days'}",
            place=case.anchor,
        )


def _too_old(report: LoadedReport, now: datetime, days: float) -> str:
    created = report.report.created
    try:
        written = datetime.fromisoformat(created)
    except ValueError:
        return f"its date {created!r} is no date"
    written = written.replace(tzinfo=UTC) if written.tzinfo is None else written
    if written - now > _SKEW:
        return f"it says it was written at {created}, which lies ahead"
    old = (now - written) / timedelta(days=1)
    return (
        f"it is {counted(round(old), 'day')} old, and {days:g} {'is' if days == 1 else 'are'} allowed"
        if old > days
        else ""
    )
