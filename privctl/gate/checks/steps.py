"""What was done with a model and when: required steps, verdicts, and the age of reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy

STEPS, AGE, VERDICTS = "required_steps", "max_age_days", "forbid_outcomes"
#: Clocks of two machines may differ by so much.
_SKEW = timedelta(hours=24)
_COMMANDS = {
    "retrain": "privctl retrain dp-sgd",
    "noise": "privctl noise",
    "replay": "privctl retrain ferret --replay",
    "audit": "privctl audit",
    "verify": "privctl verify",
    "inspect": "privctl inspect",
}

_ON = {"verify": "this model's own report"}
_GIVE = {"verify": "what it writes with -o", "inspect": "what it prints with --json"}


def required(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Whether every step asked for is in the model's history or looked at it, and has something to show."""
    for step in policy.required_steps:
        done = [each for each in (*case.history, *case.looks) if each.report.step == step]
        if step == "verify":
            done = case.verifying(done)
        shown = [each for each in done if not _hollow(each.report, case)]
        if shown:
            yield Finding(
                rule=STEPS,
                outcome=GateOutcome.PASS,
                subject=step,
                message=f"{step}, at {shown[0].report.created}",
                place=shown[0].place("step"),
            )
            continue
        missing = (
            f"its report {_hollow(done[0].report, case)}" if done else "no report given of this model is of this step"
        )
        yield Finding(
            rule=STEPS,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=step,
            message=missing,
            fix=f"run {_COMMANDS.get(step, step)} on {_ON.get(step, 'this model')} and give "
            + _GIVE.get(step, "its report"),
            place=done[0].place("step") if done else policy.places.get(STEPS, case.anchor),
        )


def _hollow(report: PrivacyReport, case: JudgedModel) -> str:
    """Why a report of a step does not show that the step was done; empty where it does."""
    if report.step == "audit" and all(item.estimate is None for item in report.evidence):
        return "measured nothing"
    settled = (Outcome.PROVED, Outcome.CONSISTENT, Outcome.REFUTED)
    if report.step == "verify" and not any(verdict.outcome in settled for verdict in report.verdicts):
        return "settles nothing"
    if report.step == "verify" and (skipped := _unjudged(report, case)):
        return f"has no verdict on {skipped}"
    return ""


def _unjudged(report: PrivacyReport, case: JudgedModel) -> str:
    """What a verification must have judged of the model's own report, and did not; empty where it is all there."""
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
    """Verdicts of every report on this model; a refuted one fails, an inconclusive one may stop the build."""
    reports = (*case.makers, *case.looks)
    found = [each for report in reports for each in stopping(report, policy)]
    yield from found
    every = [verdict for report in reports for verdict in report.report.verdicts]
    count = sum(_counts(verdict, policy) for verdict in every)
    left = len(every) - count
    if count and not found:
        yield Finding(
            rule=VERDICTS,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message=f"{'the one verdict' if count == 1 else f'each of {count} verdicts'} is other than "
            + " or ".join(policy.forbid_outcomes)
            + (f"; {left} more on what a report itself calls no more than claimed" if left else ""),
            place=next(report for report in reports if report.report.verdicts).place("verdicts"),
        )


def stopping(report: LoadedReport, policy: Policy) -> Iterator[Finding]:
    """The verdicts of ``report`` that stop a build."""
    for i, verdict in enumerate(report.report.verdicts):
        if verdict.outcome.value not in policy.forbid_outcomes or not _counts(verdict, policy):
            continue
        refuted = verdict.outcome is Outcome.REFUTED
        yield Finding(
            rule=VERDICTS,
            outcome=GateOutcome.FAIL if refuted else GateOutcome.INCONCLUSIVE,
            subject=verdict.subject,
            message=f"{verdict.outcome} by {report.report.step}: {verdict.reason}",
            fix="make the model safer and audit again, or accept it for a time with a [[waiver]]"
            if refuted
            else "remove the reason named, and audit again",
            place=report.place("verdicts", i, "outcome"),
        )


def _counts(verdict: Verdict, policy: Policy) -> bool:
    """Whether a verdict matters: one on a guarantee that promises nothing, and that the policy does not count, not."""
    return verdict.decisive or (verdict.status is not None and verdict.status.value in policy.require)


def age(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Whether every report of this model has a date that can be true, and is young enough.

    Where a log asks for every audit there ever was, the newest alone must be young.
    """
    days = math.inf if policy.max_age_days is None else policy.max_age_days
    logged = sorted(case.audits, key=lambda each: each.report.created)[:-1] if policy.require_audit_log else ()
    earlier = {each.digest for each in logged}
    late = False
    for report in (*case.makers, *case.looks):
        said = _too_old(report, case.now, math.inf if report.digest in earlier else days)
        if said:
            late = True
            yield Finding(
                rule=AGE,
                outcome=GateOutcome.FAIL,
                subject=str(report.path),
                message=said,
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
        made = datetime.fromisoformat(created)
    except ValueError:
        return f"its date {created!r} is no date"
    made = made.replace(tzinfo=UTC) if made.tzinfo is None else made
    if made - now > _SKEW:
        return f"it says it was written at {created}, which lies ahead"
    old = (now - made) / timedelta(days=1)
    return (
        f"it is {counted(round(old), 'day')} old, and {days:g} {'is' if days == 1 else 'are'} allowed"
        if old > days
        else ""
    )
