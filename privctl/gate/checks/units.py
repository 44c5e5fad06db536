"""Whose records a training protects together, and whose an audit judges together: the field that a report names."""

from __future__ import annotations

from collections.abc import Iterable

from privctl.gate.files import LoadedReport
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

#: Steps that train on data.
TRAININGS = ("retrain", "external-training")


def unit_of(training: LoadedReport) -> str | None:
    """The field whose values made the examples of a training; None where each record was one, or it does not say."""
    try:
        return parameters_as(TrainingParameters, training.report).unit
    except ParametersError:
        return None


def groups_of(audit: LoadedReport) -> str | None:
    """The field by whose values an audit counted groups, such as users; None where it counted records."""
    try:
        return parameters_as(AuditParameters, audit.report).group_by
    except ParametersError:
        return None


def holds(stated: str | None, field: str) -> bool:
    """Whether all records with one value of ``field`` are together where all with one value of ``stated`` are.

    ``fold(FIELD)`` puts values together that are spelled alike, so that no value of FIELD is divided.
    """
    return stated in (field, f"fold({field})")


def whom(field: str | None) -> str:
    """Whose records are one example where ``field`` names them."""
    return "each record by itself" if field is None else f"all records with one value of {field!r}"


def why_of_others(audits: Iterable[LoadedReport], policy: Policy) -> str:
    """Why none of ``audits`` is about those whom the policy protects; empty where one is, or it protects records."""
    judged = dict.fromkeys(groups_of(each) for each in audits)
    if policy.field is None or any(holds(each, policy.field) for each in judged):
        return ""
    whose = " and ".join(map(whom, judged))
    return f"audits judged {whose}, and the policy protects {whom(policy.field)}, which together show more"
