"""A bound on the epsilon of a group counts where groups were the examples of the training, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.domain.gate import GateOutcome
from tests.gate.made import FAIL, INCONCLUSIVE, PASS, PROVED, audit, judged, lower_bound, making, of

MANY = {"delta": 1e-5, "copies": 1, "group_records": 20}


@pytest.mark.parametrize(
    ("unit", "group_by", "outcome"),
    [
        ("user", "user", FAIL),
        ("user", "site", INCONCLUSIVE),
        ("user", None, INCONCLUSIVE),
        (None, "user", INCONCLUSIVE),
        (None, None, FAIL),
    ],
)
def test_a_bound_counts_for_the_examples_that_it_is_about(
    tmp_path: Path, unit: str | None, group_by: str | None, outcome: GateOutcome
) -> None:
    """Of a claim of epsilon 2, which 2.5 contradicts; that of something else says nothing of it."""
    whose = "epsilon, loss" if group_by is None else "epsilon of a group, loss"
    details = MANY if group_by else {"delta": 1e-5, "copies": 1}
    report = making(tmp_path / "m.json", PROVED, parameters={"method": "dp-sgd", "unit": unit})
    stated = {"attack": ["loss"], "split_commitment": "blake3:0", "group_by": group_by}
    looked = audit(tmp_path / "a.json", lower_bound(2.5, quantity=whose, details=details), parameters=stated)
    (found,) = of(judged(report, looked, max_epsilon_lower_bound="2.4"), "max_epsilon_lower_bound")
    assert found.outcome is outcome
    contradicted = FAIL in [finding.outcome for finding in of(judged(report, looked, max_epsilon="2.2"), "max_epsilon")]
    assert contradicted is (outcome is FAIL)
    assert PASS in [finding.outcome for finding in of(judged(report, looked, max_epsilon="2.6"), "max_epsilon")]
