"""Whom a model's guarantees protect: all records with one value of the field that the policy names, such as a patient.

By default an example is one record, and a person with many is protected less than epsilon says. Which field a training
went by stands in the parameters of its report; ``verify`` holds its assumption ``unit of privacy`` against them.
"""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.domain.guarantee import Guarantee, PrivacyUnit, Status
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.gate.checks.guarantees import Counted, of_no_report, that_decide
from privctl.gate.checks.units import TRAININGS, holds, whom
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

RULE = "protects"
#: Roles of what a step without data of its own makes its model of.
_MADE_OF = ("model", "updates")
_TRAINING = "give the report of the training, as privctl wrote it, and state no facts of it to privctl noise by hand"


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Whether a guarantee that counts, within ``max_epsilon`` if any is, protects each value of the field."""
    if policy.field is None:
        return
    if undecided := of_no_report(case, policy, RULE):
        yield undecided
        return
    counted, others = that_decide(case, policy)
    findings = []
    for report, i, guarantee, size in counted:
        training, doubt = _training_of(case, report)
        unit = None if doubt else parameters_as(TrainingParameters, training.report).unit
        if guarantee.unit is not PrivacyUnit.EXAMPLE:
            others.append(f"{guarantee.name} protects one {guarantee.unit}")
        elif doubt:
            message = f"whom it protects is not known: {doubt}"
            place = report.place("guarantees", i)
            findings.append(_finding(GateOutcome.INCONCLUSIVE, guarantee.name, message, _TRAINING, place))
        elif holds(unit, policy.field):
            findings.append(_with_earlier(case, policy.field, (report, i, guarantee, size), training))
        else:
            others.append(f"{guarantee.name} protects {whom(unit)}")
    if findings:
        yield min(findings, key=lambda each: each.outcome is not GateOutcome.PASS)
        return
    reasons = "; ".join(dict.fromkeys(others)) or "the reports state none"
    none = "no guarantee that counts protects" if counted else "no guarantee counts, so none protects"
    yield _finding(
        GateOutcome.FAIL,
        case.name,
        f"{none} {whom(policy.field)} together: {reasons}",
        f"train with --unit {policy.field}, or in a loop of your own with make_private(users=..., "
        f"unit={policy.field!r})",
        policy.places.get(RULE, case.makers[0].place("guarantees")),
    )


def _with_earlier(case: JudgedModel, field: str, counted: Counted, training: LoadedReport) -> Finding:
    """The finding about a guarantee that protects the field, by what the trainings before its own protected."""
    report, i, guarantee, size = counted
    together = f"it protects {whom(field)} together"
    earlier = [each for each in case.history if each.report.step in TRAININGS and each is not training]
    for each in earlier:
        if lacking := _why_not_protecting(each, field):
            return _finding(
                GateOutcome.INCONCLUSIVE,
                guarantee.name,
                f"{together} in the data of its own training; an earlier one ({each.path}) {lacking}, and no report "
                "says whether its data hold such records too",
                f"train that one with --unit {field} too, or begin with weights made without such records; waive this "
                "where its data are public",
                each.place("parameters"),
            )
    alone = ", by its own training alone: who is in the data of several is protected less" if earlier else ""
    message = f"{together}, at epsilon {size:.4g} and delta {guarantee.delta:g}{alone}"
    return _finding(GateOutcome.PASS, guarantee.name, message, "", report.place("guarantees", i))


def _why_not_protecting(training: LoadedReport, field: str) -> str:
    """Why an earlier training protects no value of ``field`` as a whole; empty where a guarantee of its own does."""
    if not any(map(_stands, training.report.guarantees)):
        return "guarantees nothing"
    try:
        unit = parameters_as(TrainingParameters, training.report).unit
    except ParametersError as fault:
        return f"does not say whom it protects ({fault})"
    return "" if holds(unit, field) else f"protects {whom(unit)}"


def _stands(guarantee: Guarantee) -> bool:
    return guarantee.unit is PrivacyUnit.EXAMPLE and guarantee.status in (Status.PROVED, Status.CONDITIONAL)


def _training_of(case: JudgedModel, report: LoadedReport) -> tuple[LoadedReport, str]:
    """The training whose examples the guarantees of ``report`` count, and why they may not be those; "" if they are.

    It is ``report`` itself, or the one that made the weights which noise was added to, if the facts are its own.
    """
    training, left = report, list(case.history)
    while training.report.step not in TRAININGS:
        read = {each.digest for each in training.report.inputs if each.role in _MADE_OF}
        left = [each for each in left if each is not training]
        before = next((each for each in left if read and read <= each.gives), None)
        if before is None:
            return training, "no report given is of the training of these weights"
        training = before
    try:
        parameters_as(TrainingParameters, training.report)
    except ParametersError as fault:
        return training, str(fault)
    if training is report or _same_examples(report, training):
        return training, ""
    return training, "the training facts that it rests on are not those of the training's report"


def _same_examples(noise: LoadedReport, training: LoadedReport) -> bool:
    """Whether noise was made for as many examples, of the clipped training that its report names."""
    made_for, clipped = noise.report.mechanism, training.report.mechanism
    return (
        isinstance(made_for, WeightNoise)
        and made_for.training is not None
        and isinstance(clipped, ClippedTraining)
        and made_for.training.dataset_size == clipped.dataset_size
    )


def _finding(outcome: GateOutcome, subject: str, message: str, fix: str, place: FileLine) -> Finding:
    return Finding(rule=RULE, outcome=outcome, subject=subject, message=message, fix=fix, place=place)
