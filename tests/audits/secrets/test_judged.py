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
