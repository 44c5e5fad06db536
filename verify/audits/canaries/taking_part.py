"""What of a training's mechanism its canaries take part in, which is what an audit of them tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.events import Ledger
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as


def mechanism_of(training: PrivacyReport, *, planted: bool) -> object:
    """All that the report of a ``training`` states for ``planted`` records; for canary gradients its steps alone."""
    stated = training.mechanism
    if planted or not isinstance(stated, Ledger):
        return stated
    try:
        steps = parameters_as(TrainingParameters, training).steps_begun
    except ParametersError:
        return stated  # another check says so
    return Ledger(events=stated.events[:1]) if stated.events[0].steps == steps else stated


def steps_alone(audit: PrivacyReport, parameters: AuditParameters, parents: Sequence[PrivacyReport]) -> bool:
    """Whether an ``audit`` of canary gradients tested a mechanism without what else is in a report of the model."""
    tested = parameters.canary_mechanism
    return tested is not None and any(
        tested != maker.mechanism and tested == mechanism_of(maker, planted=False) for maker in makers(audit, parents)
    )


def makers(audit: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[PrivacyReport]:
    """The reports among ``parents`` that made the audited weights."""
    weights = {item.digest for item in audit.inputs if item.role == "model"}
    for parent in parents:
        if weights and weights <= {item.digest for item in parent.outputs}:
            yield parent
