"""The quality of the model on held-out records: a model at chance is private, and of no use."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.gate import Finding, GateOutcome
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy

ACCURACY, LOSS = "min_accuracy", "max_loss"
#: The quantity of each rule, in the report of a training with ``--held-out``.
_QUANTITIES = {ACCURACY: "held-out accuracy", LOSS: "held-out loss, nats"}


def accuracy(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the accuracy on held-out records."""
    yield from _check(case, policy, ACCURACY, policy.min_accuracy)


def loss(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the mean loss on held-out records, in nats."""
    yield from _check(case, policy, LOSS, policy.max_loss)


def _check(case: JudgedModel, policy: Policy, rule: str, limit: float | None) -> Iterator[Finding]:
    """Compare what the training measured of the weights that it wrote; other weights have other figures."""
    if limit is None:
        return
    quantity = _QUANTITIES[rule]
    measured = [
        (report, i, item.estimate)
        for report in case.writers
        for i, item in enumerate(report.report.evidence)
        if item.quantity == quantity and item.estimate is not None
    ]
    if not measured:
        yield Finding(
            rule=rule,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=case.name,
            message=f"the report of the step that wrote this model states no {quantity}",
            fix="train with --held-out, which measures the model after each epoch",
            place=policy.places.get(rule, case.default_place),
        )
    for report, i, value in measured:
        within = value >= limit if rule == ACCURACY else value <= limit
        side = "within" if within else "below" if rule == ACCURACY else "above"
        yield Finding(
            rule=rule,
            outcome=GateOutcome.PASS if within else GateOutcome.FAIL,
            subject=quantity,
            message=f"the {quantity} is {value:.4g}, {side} {limit:g}",
            fix="" if within else "train longer, with larger batches or with a larger epsilon",
            place=report.place("evidence", i, "estimate"),
        )
