"""Units of privacy: the field whose values a training protected together, or an audit judged together."""

from __future__ import annotations

from collections.abc import Iterable

from privctl.gate.files import LoadedReport
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

#: Steps that train on data.


def unit_of(training: LoadedReport) -> str | None:
    """The field whose values are the examples of a training; None if each record is one, or it cannot be read."""
    try:
        return parameters_as(TrainingParameters, training.report).unit
    except ParametersError:
        return None


def groups_of(audit: LoadedReport) -> str | None:
    """The field whose values are the groups that an audit judged, such as users; None if it judged records."""
    try:
        return parameters_as(AuditParameters, audit.report).group_by
    except ParametersError:
        return None


def covers(stated: str | None, field: str) -> bool:
    """Whether grouping records by ``stated`` keeps all records with one value of ``field`` in one group.

    ``fold(FIELD)`` merges values of FIELD that differ only in spelling, so it splits none of them.
    """
    return stated in (field, f"fold({field})")


def protected_records(field: str | None) -> str:
    """What one example is if ``field`` names the unit, in words."""
    return "each record by itself" if field is None else f"all records with one value of {field!r}"


def why_other_unit(audits: Iterable[LoadedReport], policy: Policy) -> str:
    """Why none of ``audits`` judged the policy's unit; empty if one did, or if the unit is the record."""
    judged = dict.fromkeys(groups_of(audit) for audit in audits)
    if policy.field is None or any(covers(groups, policy.field) for groups in judged):
        return ""
    whose = " and ".join(map(protected_records, judged))
    return (
        f"audits judged {whose}, but the policy protects {protected_records(policy.field)}, which are easier to detect"
    )
