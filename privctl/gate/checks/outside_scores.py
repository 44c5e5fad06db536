"""Audits of scores that privctl did not make: that they are of the model at hand is somebody's word.

What such an audit finds counts against the model. That it found nothing counts only where the policy accepts the word.
"""

from __future__ import annotations

from privctl.domain.guarantee import AssumptionState
from privctl.gate.files import LoadedReport
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import SCORES_OF_MODEL, AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as

#: What lets such an audit count.
FIX = (
    f'audit with privctl audit; or if somebody answers for the scores, add to accepted_assumptions: "{SCORES_OF_MODEL}"'
)


def are_outside(report: LoadedReport) -> bool:
    """Whether an audit judges scores that it was given as those of a model."""
    return report.report.step == "audit" and {"model", "scores"} <= {each.role for each in report.report.inputs}


def why_unaccepted(report: LoadedReport, policy: Policy) -> str:
    """Why nothing that speaks for the model follows from an audit; empty where it may."""
    if not are_outside(report):
        return ""
    try:
        stated = parameters_as(AuditParameters, report.report).score_conditions
    except ParametersError as fault:
        return f"on what its scores rest is not known: {fault}"
    if not stated:
        return "its scores were not made by privctl, and it does not say on what they rest"
    accepted = policy.accepted_assumptions or ()
    open_names = [a.name for a in stated if a.state is not AssumptionState.CHECKED and a.name not in accepted]
    if not open_names:
        return ""
    return f"rests on {', '.join(open_names)}, which the policy does not accept unchecked"
