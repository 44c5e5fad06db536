"""A private model at chance is of no use: a policy may ask for accuracy or loss on held-out records."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.gate import GateOutcome
from tests.gate.made import FAIL, INCONCLUSIVE, PASS, PROVED, digest, judged, making, of, only, weights


def measured(quantity: str, value: float | None) -> Evidence:
    return Evidence(
        method="measured after the epoch", quantity=quantity, estimate=value, bound=Bound.NONE,
        samples={"examples": 100}, reason="" if value is not None else "diverged",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "limit", "quantity", "value", "outcome", "says"),
    [
        ("min_accuracy", "0.8", "held-out accuracy", 0.81, PASS, "0.81, within 0.8"),
        ("min_accuracy", "0.8", "held-out accuracy", 0.5, FAIL, "0.5, below 0.8"),
        ("max_loss", "3.5", "held-out loss, nats", 3.5, PASS, "within 3.5"),
        ("max_loss", "3.5", "held-out loss, nats", 4.8, FAIL, "4.8, above 3.5"),
        ("max_loss", "3.5", "held-out loss, nats", None, INCONCLUSIVE, "states no held-out loss"),
        ("min_accuracy", "0.8", "held-out loss, nats", 0.1, INCONCLUSIVE, "states no held-out accuracy"),
    ],
)
def test_held_out_figures(
    rule: str, limit: str, quantity: str, value: float | None, outcome: GateOutcome, says: str, tmp_path: Path
) -> None:
    report = making(tmp_path / "m.report.json", PROVED, evidence=(measured(quantity, value),))
    found = only(judged(report, environment=None, max_epsilon="8", **{rule: limit}), rule)
    assert found.outcome is outcome
    assert says in found.message
    assert bool(found.fix) is (outcome is not PASS)
    assert of(judged(report, max_epsilon="8"), rule) == []


def test_figures_of_the_training_are_not_those_of_noised_weights(tmp_path: Path) -> None:
    trained = making(tmp_path / "m.report.json", PROVED, evidence=(measured("held-out accuracy", 0.9),))
    noised = making(tmp_path / "n.report.json", name="n", step="noise", inputs=(weights("m"),), parents=(trained,))
    assert digest("m") != digest("n")
    found = only(judged(trained, noised, max_epsilon="8", min_accuracy="0.8"), "min_accuracy")
    assert found.outcome is INCONCLUSIVE
