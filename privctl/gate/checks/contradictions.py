"""Reports that contradict themselves, for instance by a status better than its assumptions allow.

A consistent forgery passes this check; ``privctl verify``, which recomputes, can detect it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.guarantee import Guarantee, Status, status_of
from privctl.domain.report import STEPS
from privctl.domain.verdict import Outcome
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from verify.consistency import begun_with

RULE = "contradiction"
_ANEW = "train again from weights that were made without these examples"
_RANK = {Status.PROVED: 0, Status.CONDITIONAL: 1, Status.CLAIMED: 2, Status.REFUTED: 3, Status.VOID: 3}
_SHARES = ("AUC", "TPR", "rate on", "disclosed", "training text", "held-out text", "accuracy", "precision", "recall")
_DIFFERENCE = "AUC over "


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Yield a finding for every contradiction in the reports that the other rules read."""
    findings = [*_in_steps(case), *_in_guarantees(case), *_in_audits(case), *_in_training(case)]
    if not findings and (case.writers or case.examinations):
        yield Finding(
            rule=RULE,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message="no report contradicts itself; privctl verify checks whether their numbers are right",
            place=case.default_place,
        )
    yield from findings


def _in_steps(case: JudgedModel) -> Iterator[Finding]:
    for report in {each.digest: each for each in (*case.history, *case.examinations)}.values():
        if report.report.step not in STEPS:
            yield _finding(str(report.path), f"privctl has no step {report.report.step!r}", report, "step")


def _in_guarantees(case: JudgedModel) -> Iterator[Finding]:
    for report, i, guarantee in case.guarantees:
        reason = why_inconsistent(guarantee)
        if reason:
            yield _finding(guarantee.name, reason, report, "guarantees", i, "status")


def _in_audits(case: JudgedModel) -> Iterator[Finding]:
    for report in case.audits:
        for i, item in enumerate(report.report.evidence):
            reason = why_impossible(item)
            if reason:
                yield _finding(f"{item.method} {item.quantity}", reason, report, "evidence", i)
        for i, verdict in enumerate(report.report.verdicts):
            if verdict.outcome is Outcome.PROVED:
                reason = "an audit states PROVED, but no attack can prove anything"
                yield _finding(verdict.subject, reason, report, "verdicts", i, "outcome")
            if verdict.status is not None:
                reason = f"an audit gives it the status {verdict.status}, which only guarantees have"
                yield _finding(verdict.subject, reason, report, "verdicts", i, "status")


def _in_training(case: JudgedModel) -> Iterator[Finding]:
    """Weights have one origin, and no guarantee covers what a training's starting weights reveal about its data."""
    first: dict[str, LoadedReport] = {}
    for report in case.writers:
        other = first.setdefault(report.report.step, report)
        if other is not report:
            reason = f"{other.path} also states that it wrote these weights, and the two reports differ"
            yield _finding(case.name, reason, report, "outputs")
    for report in {report.digest: report for report, _, _ in case.guarantees}.values():
        others = [other.report for other in case.history if other is not report]
        stated = [
            {assumption.name: assumption.state for assumption in guarantee.assumptions}
            for guarantee in report.report.guarantees
        ]
        faults = (fault for states in stated for fault in begun_with.faults(report.report, states, others))
        for fault in dict.fromkeys(faults):
            yield replace(_finding(case.name, fault, report, "guarantees"), fix=_ANEW)


def why_inconsistent(guarantee: Guarantee) -> str:
    """Why ``guarantee`` cannot have the status that it states; empty if it can."""
    follows = status_of(guarantee.assumptions)
    if _RANK[guarantee.status] < _RANK[follows]:
        broken = {Status.VOID: "violated", Status.CONDITIONAL: "asserted"}[follows]
        names = ", ".join(a.name for a in guarantee.assumptions if a.state == broken)
        return f"it states {guarantee.status}, but is {follows} by its own assumptions ({broken}: {names})"
    if guarantee.status is Status.PROVED and not guarantee.assumptions:
        return "it states proved, but no assumption that was enforced or checked"
    stands = guarantee.status in (Status.PROVED, Status.CONDITIONAL)
    low, epsilon = guarantee.floor, guarantee.epsilon
    if stands and low is not None and epsilon is not None and epsilon < low:
        return f"its epsilon {epsilon:g} is below its own lower bound {low:g}"
    return ""


def why_impossible(item: Evidence) -> str:
    """Why ``item`` cannot be the result of a measurement; empty if it can."""
    if not 0 < item.confidence < 1:
        return f"its confidence is {item.confidence:g}"
    if item.lower is not None and item.upper is not None and item.lower > item.upper:
        return f"its lower bound {item.lower:g} is above its upper bound {item.upper:g}"
    known = [value for value in (item.lower, item.estimate, item.upper) if value is not None]
    if item.quantity.startswith(_SHARES) and not item.quantity.startswith(_DIFFERENCE):
        if not all(0 <= value <= 1 for value in known):
            return "a share is outside 0 to 1"
        if known != sorted(known):
            return "its interval does not contain its estimate"
    if item.bound is Bound.LOWER and known and min(known) < 0:
        return "a lower bound is below 0"
    return ""


def _finding(subject: str, message: str, report: LoadedReport, *where: str | int) -> Finding:
    return Finding(
        rule=RULE,
        outcome=GateOutcome.FAIL,
        subject=subject,
        message=message,
        fix="use the report as privctl wrote it, or run the step again",
        place=report.place(*where),
    )
