"""Audits of given scores that are tied to a model: the assumption they must state about the caller's word.

Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import Omission, PrivacyReport
from privctl.reports.audit_parameters import AuditParameters

_NAME, _COLUMN = "scores of the model", "column "
#: The permitted statements: for scores from a file, and for scores from a function that privctl called.
_STATEMENTS = frozenset({
    "each score in the file is what this model gives to its record, by nothing but the two, and whether the model was "
    "trained on the record is as the file says",
    "the caller's function scored each record by nothing but the record and the network that it was given, whose "
    "weights were compared with the files of this model, and whether the model was trained on the record is as the "
    "caller says",
})  # fmt: skip


def is_tied_to_model(report: PrivacyReport) -> bool:
    """Whether the report names a model and a file of scores given for it."""
    return {"model", "scores"} <= {artifact.role for artifact in report.inputs}


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence per fault in what the report states about given scores."""
    stated = parameters.score_conditions
    if not is_tied_to_model(report):
        if stated is not None:
            yield "it states on what scores made elsewhere rest, and names no model with such scores"
        return
    names = [entry.name for entry in stated or ()]
    if names != [_NAME]:
        yield f"its scores were not made by privctl, and it does not state the assumption {_NAME!r} alone"
    for each in stated or ():
        if each.state is not AssumptionState.ASSERTED:
            yield f"its assumption {each.name!r} is {each.state}, and only the caller knows whether it holds"
        if each.statement not in _STATEMENTS:
            yield f"its assumption {each.name!r} says {each.statement!r}, which is not that assumption"
    for name in parameters.attack:
        if not name.startswith(_COLUMN):
            yield f"the attack {name!r} is privctl's own, and its scores were not made by privctl"


def unchecked(report: PrivacyReport) -> Iterator[Omission]:
    """Yields the omission that it was not checked whose scores these are."""
    if report.step == "audit" and is_tied_to_model(report):
        yield Omission(
            what="whether the scores are of this model",
            reason="privctl did not make them: that they are is what the caller asserts",
        )
