"""Audits of external scores, which privctl did not compute: that they are scores of this model is asserted.

A leak that such an audit finds counts against the model. That it finds none counts only if the policy accepts the
assumption.
"""

from __future__ import annotations

from privctl.domain.guarantee import AssumptionState
from privctl.gate.files import LoadedReport
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import SCORES_OF_MODEL, AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as

#: How such an audit can count.
FIX = (
    f'audit with privctl audit; or if somebody vouches for the scores, add to accepted_assumptions: "{SCORES_OF_MODEL}"'
)


def has_external_scores(report: LoadedReport) -> bool:
    """Whether ``report`` is of an audit of external scores that were given as those of a model."""
    return report.report.step == "audit" and {"model", "scores"} <= {artifact.role for artifact in report.report.inputs}


def why_unaccepted(report: LoadedReport, policy: Policy) -> str:
    """Why an audit cannot count in favour of the model; empty if it can."""
    if not has_external_scores(report):
        return ""
    try:
        stated = parameters_as(AuditParameters, report.report).score_conditions
    except ParametersError as fault:
        return f"the conditions on its scores cannot be read: {fault}"
    if not stated:
        return "its scores were not computed by privctl, and it states no conditions on them"
    accepted = policy.accepted_assumptions or ()
    open_names = [a.name for a in stated if a.state is not AssumptionState.CHECKED and a.name not in accepted]
    if not open_names:
        return ""
    return f"rests on {', '.join(open_names)}, which the policy does not accept unchecked"
