"""The parameters of a report as verify reads them: one class per step, and one per training method."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import OF_ATTACKS, AuditParameters
from privctl.reports.parameters import (
    BudgetParameters,
    ExternalTrainingParameters,
    NoiseParameters,
    ProtectionParameters,
    TrainingParameters,
    parameters_as,
    unknown_entries,
)
from verify.events import planned_kinds
from verify.methods import expected_of
from verify.methods.expected import EXTERNAL, TRAINING, ExpectedMethod, StatedTraining

#: The parameter classes of steps that have a fixed set of parameters.
_OF_STEP: dict[str, type] = {
    "noise": NoiseParameters, "secrets-plan": ProtectionParameters, "external-training": ExternalTrainingParameters,
}  # fmt: skip


def method_of(report: PrivacyReport) -> ExpectedMethod | None:
    """What verify expects of the report's training method; None for an unknown method or another step."""
    if report.step != TRAINING:
        return None
    return expected_of(parameters_as(TrainingParameters, report).method)


def training_of(report: PrivacyReport) -> StatedTraining:
    """The parameters of a training report, read as its method's class. Raises ParametersError if unreadable."""
    method = method_of(report)
    return parameters_as(StatedTraining if method is None else method.parameters, report)


def kind_of(report: PrivacyReport) -> type | None:
    """The class that lists all parameters of ``report``; None for a step without one, or for an unknown method."""
    if report.step == TRAINING:
        method = method_of(report)
        return None if method is None else method.parameters
    return _kind_of_budget(report) if report.step == "account" else _OF_STEP.get(report.step)


def _kind_of_budget(report: PrivacyReport) -> type[BudgetParameters]:
    """The class of a plan's parameters, chosen by the mechanism the plan names."""
    mechanism = parameters_as(BudgetParameters, report).mechanism
    return next((row.parameters for _, row in planned_kinds() if row.mechanism == mechanism), BudgetParameters)


def unknown_parameters(report: PrivacyReport) -> list[str]:
    """The names of parameters that no report of this kind has, so that their meaning is unknown."""
    if report.step == "audit":
        return [name for name in unknown_entries(AuditParameters, report) if name not in OF_ATTACKS]
    kind = kind_of(report)
    return [] if kind is None else unknown_entries(kind, report)


def check_readable(report: PrivacyReport) -> None:
    """Raises ParametersError if the parameters lack an entry or hold one of the wrong type."""
    if report.step == TRAINING:
        training_of(report)
    elif report.step == "account":
        budget_of(report)
    elif report.step in _OF_STEP:
        parameters_as(_OF_STEP[report.step], report)
    elif report.step == "audit":
        parameters_as(AuditParameters, report)


def delta_of(report: PrivacyReport) -> float | None:
    """The delta stated in the parameters, or None."""
    if report.step == TRAINING:
        return training_of(report).delta
    if report.step == "noise":
        return parameters_as(NoiseParameters, report).delta
    if report.step == EXTERNAL:
        return parameters_as(ExternalTrainingParameters, report).delta
    if report.step == "secrets-plan":
        return parameters_as(ProtectionParameters, report).delta
    return parameters_as(BudgetParameters, report).delta if report.step == "account" else None


def noise_source_of(report: PrivacyReport) -> str | None:
    """The random source of a training's noise; None for other steps."""
    if report.step == EXTERNAL:
        return parameters_as(ExternalTrainingParameters, report).noise_source
    return training_of(report).noise_source if report.step == TRAINING else None


def budget_of(report: PrivacyReport) -> BudgetParameters | None:
    """The parameters of a plan made by ``privctl account``; None for other steps."""
    return parameters_as(_kind_of_budget(report), report) if report.step == "account" else None
