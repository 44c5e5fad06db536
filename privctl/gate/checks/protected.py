"""Whether a guarantee protects all records with one value of the field that the policy names, such as a patient.

By default an example is one record, and a person with several records is protected less than epsilon says. The
parameters of a training's report state its field; ``verify`` checks the assumption ``unit of privacy`` against them.
"""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.domain.guarantee import Guarantee, PrivacyUnit, Status
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.domain.report import TRAININGS
from privctl.gate.checks.guarantees import CountedGuarantee, deciding_guarantees, missing_report
from privctl.gate.checks.units import covers, protected_records
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

RULE = "protects"
#: Roles of the inputs from which a step without training data makes its model.
_MADE_OF = ("model", "updates")
_TRAINING = "give the training's report as privctl wrote it, and let privctl noise read the training's facts from it"


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check that a guarantee that counts protects all records with one value of the policy's field together."""
    if policy.field is None:
        return
    if undecided := missing_report(case, policy, RULE):
        yield undecided
        return
    counted, others = deciding_guarantees(case, policy)
    findings = []
    for report, i, guarantee, size in counted:
        training, doubt = _training_of(case, report)
        unit = None if doubt else parameters_as(TrainingParameters, training.report).unit
        if guarantee.unit is not PrivacyUnit.EXAMPLE:
            others.append(f"{guarantee.name} protects one {guarantee.unit}")
        elif doubt:
            message = f"its unit of privacy is not known: {doubt}"
            place = report.place("guarantees", i)
            findings.append(_finding(GateOutcome.INCONCLUSIVE, guarantee.name, message, _TRAINING, place))
        elif covers(unit, policy.field):
            findings.append(_with_earlier(case, policy.field, (report, i, guarantee, size), training))
        else:
            others.append(f"{guarantee.name} protects {protected_records(unit)}")
    if findings:
        yield min(findings, key=lambda finding: finding.outcome is not GateOutcome.PASS)
        return
    reasons = "; ".join(dict.fromkeys(others)) or "the reports state none"
    none = "no guarantee that counts protects" if counted else "no guarantee counts, so none protects"
    yield _finding(
        GateOutcome.FAIL,
        case.name,
        f"{none} {protected_records(policy.field)} together: {reasons}",
        f"train with --unit {policy.field}, or in a loop of your own with make_private(users=..., "
        f"unit={policy.field!r})",
        policy.places.get(RULE, case.writers[0].place("guarantees")),
    )


def _with_earlier(case: JudgedModel, field: str, counted: CountedGuarantee, training: LoadedReport) -> Finding:
    """The finding on a guarantee that protects ``field``, considering what earlier trainings protected."""
    report, i, guarantee, size = counted
    together = f"it protects {protected_records(field)} together"
    earlier = [report for report in case.history if report.report.step in TRAININGS and report is not training]
    for other in earlier:
        if lacking := _why_not_protecting(other, field):
            return _finding(
                GateOutcome.INCONCLUSIVE,
                guarantee.name,
                f"{together} in the data of its own training; an earlier one ({other.path}) {lacking}, and no report "
                "says whether its data contain such records",
                f"repeat that training with --unit {field}, or start from weights trained without such records; waive "
                "this if its data are public",
                other.place("parameters"),
            )
    alone = (
        ", for its own training only: records in the data of several trainings are protected less" if earlier else ""
    )
    message = f"{together}, at epsilon {size:.4g} and delta {guarantee.delta:g}{alone}"
    return _finding(GateOutcome.PASS, guarantee.name, message, "", report.place("guarantees", i))


def _why_not_protecting(training: LoadedReport, field: str) -> str:
    """Why an earlier training does not protect all records with one value of ``field``; empty if it does."""
    if not any(map(_is_established, training.report.guarantees)):
        return "guarantees nothing"
    try:
        unit = parameters_as(TrainingParameters, training.report).unit
    except ParametersError as fault:
        return f"does not state its unit of privacy ({fault})"
    return "" if covers(unit, field) else f"protects {protected_records(unit)}"


def _is_established(guarantee: Guarantee) -> bool:
    return guarantee.unit is PrivacyUnit.EXAMPLE and guarantee.status in (Status.PROVED, Status.CONDITIONAL)


def _training_of(case: JudgedModel, report: LoadedReport) -> tuple[LoadedReport, str]:
    """The training whose examples the guarantees of ``report`` protect, and a reason to doubt that it is ("" if none).

    It is ``report`` itself, or the training that wrote the weights to which noise was added.
    """
    training, left = report, list(case.history)
    while training.report.step not in TRAININGS:
        read = {artifact.digest for artifact in training.report.inputs if artifact.role in _MADE_OF}
        left = [report for report in left if report is not training]
        before = next((report for report in left if read and read <= report.released), None)
        if before is None:
            return training, "no report given is of the training of these weights"
        training = before
    try:
        parameters_as(TrainingParameters, training.report)
    except ParametersError as fault:
        return training, str(fault)
    if training is report or _same_examples(report, training):
        return training, ""
    return training, "the training facts that it was computed from are not those in the training's report"


def _same_examples(noise: LoadedReport, training: LoadedReport) -> bool:
    """Whether the noise was calibrated for the number of examples of the clipped ``training``."""
    made_for, clipped = noise.report.mechanism, training.report.mechanism
    return (
        isinstance(made_for, WeightNoise)
        and made_for.training is not None
        and isinstance(clipped, ClippedTraining)
        and made_for.training.dataset_size == clipped.dataset_size
    )


def _finding(outcome: GateOutcome, subject: str, message: str, fix: str, place: FileLine) -> Finding:
    return Finding(rule=RULE, outcome=outcome, subject=subject, message=message, fix=fix, place=place)
