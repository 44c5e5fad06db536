"""Verdicts on secrets, from what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from audits.secrets import evidence
from audits.secrets.planned_bound import markov_test
from audits.secrets.trace import PAIRED, _mcnemar_test
from audits.secrets.verdict import protection, trace
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.verdict import Outcome


@pytest.mark.parametrize(
    ("secrets", "gained", "outcome", "why"),
    [
        (100, 0, Outcome.CONSISTENT, "no test found more than chance gives"),
        (99, 0, Outcome.INCONCLUSIVE, "with 99 secrets to compare, where 100 are wanted"),
        (20, 20, Outcome.REFUTED, "only secrets never trained on could tell"),
    ],
)
def test_a_comparison_with_the_base_model(secrets: int, gained: int, outcome: Outcome, why: str) -> None:
    test = _mcnemar_test(np.arange(secrets) < gained, np.zeros(secrets, np.bool_))
    found = trace(evidence.tests_as_evidence([test], 0.05))
    assert test.name == PAIRED
    assert found.outcome is outcome
    assert why in found.reason


@pytest.mark.parametrize(
    ("quantity", "why"),
    [
        ("told first, held out (control)", "fewer than 5 secrets can be compared with a control"),
        ("told first, trained, before training", "fewer than 5 secrets can be compared with a control"),
        ("told first, never drawn (control)", "fewer than 5 secrets can be compared with a control"),
        ("told first, trained", "confounded: there is no control"),
    ],
)
def test_too_few_secrets_are_not_a_missing_control(quantity: str, why: str) -> None:
    """With fewer than five secrets on a side, nothing is tested, and the control was given nevertheless."""
    item = Evidence(
        method=evidence.RECONSTRUCTION, quantity=quantity, estimate=1.0, samples={"secrets": 1}, details={"told": 1}
    )
    found = trace([item])
    assert found.outcome is Outcome.INCONCLUSIVE
    assert why in found.reason


def test_a_difference_of_shares_is_in_percentage_points() -> None:
    """From 20 of 40 to 30 of 40 are half as many more."""
    test = _mcnemar_test(np.arange(40) < 30, np.arange(40) < 20)
    found = trace(evidence.tests_as_evidence([test], 0.05))
    assert "; 25 percentage points more of them than before training (p = 0.00098)" in found.reason


@pytest.mark.parametrize(
    ("recovered", "bound", "outcome", "why"),
    [
        (30, 0.001, Outcome.REFUTED, "Markov"),
        (0, 0.001, Outcome.CONSISTENT, "2 first ranks would have contradicted that"),
        (0, 0.02, Outcome.INCONCLUSIVE, "24 first ranks would have contradicted that"),
        (30, 0.5, Outcome.INCONCLUSIVE, "not even first ranks for all of them"),
    ],
)
def test_a_plan_s_bounds(recovered: int, bound: float, outcome: Outcome, why: str) -> None:
    test = markov_test(recovered, [bound] * 30, 0.025)
    detected = float(test.p_value <= 0.025)
    item = Evidence(
        method=evidence.PROTECTION, quantity="told", estimate=recovered / 30, confidence=0.975, bound=Bound.NONE,
        details={"detected": detected},
    )  # fmt: skip
    found = protection("the plan", test, [item], "")
    assert found.outcome is outcome
    assert why in found.reason
