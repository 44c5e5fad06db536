from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from audits.secrets.planned_bound import PlannedBound, fano, markov_test


@pytest.mark.parametrize(
    ("information", "prior", "posterior"),
    [
        (0.1, 0.5, 0.719794626161),
        (0.1, 0.1, 0.256866401710),
        (1.0, 0.1, 0.689217226545),
        (0.1, 0.001, 0.037476005540),
        (1.0, 0.001, 0.221137660466),
        (5.0, 0.001, 0.796860916566),
        (1.0, 0.5, 1.0),
        (0.0, 0.01, 0.01),
    ],
)
def test_fano_against_published_values(information: float, prior: float, posterior: float) -> None:
    """Roots of kl(p, r) = D computed elsewhere to twelve digits; 1 nat is more than the ln 2 of a fair coin."""
    assert fano(information, prior) == pytest.approx(posterior, rel=1e-11)


def test_a_plan_s_own_posterior_serves_for_every_choice() -> None:
    plan = PlannedBound(information=0.1, prior=0.01, posterior=0.02)
    assert plan.success(100) == 0.02
    assert plan.success(10) == pytest.approx(0.2), "ten times the prior is at most ten times the posterior"
    assert plan.success(3) == fano(0.1, 1 / 3)
    assert plan.success(1) == 1
    assert PlannedBound(information=0.1, prior=0.01, posterior=0.9).success(100) == fano(0.1, 0.01)
    assert PlannedBound(information=9.0, prior=0.01, posterior=0.5).success(2) == 1


@pytest.mark.parametrize(("factor", "sound"), [(1.0, True), (0.8, False)])
def test_an_easier_choice_is_bounded_by_concavity(factor: float, sound: bool) -> None:
    """The Gaussian's success at prior r is Phi(Phi^-1(r) + mu), bounded from its value at 0.01 alone; 0.8: a fault."""
    held = PlannedBound(information=50.0, prior=0.01, posterior=factor * float(ndtr(ndtri(0.01) + 0.5)))
    found = [held.success(n) >= ndtr(ndtri(1 / n) + 0.5) for n in (90, 60, 40, 20, 10, 4, 2)]
    assert all(found) is sound


def test_the_markov_bound_gives_the_p_value_and_the_number_needed() -> None:
    test = markov_test(20, [0.01] * 30, 0.025)
    assert (test.secrets, test.recovered, test.needed) == (30, 20, 12)
    assert test.p_value == pytest.approx(0.3 / 20)
    assert markov_test(0, [0.01] * 3, 0.05).p_value == 1
    assert markov_test(3, [0.5] * 3, 0.05).needed == 30


@pytest.mark.parametrize(("truth", "alarms"), [(0.02, False), (0.08, True)])
def test_level_under_the_worst_dependence(truth: float, alarms: bool) -> None:
    """All secrets come out together, or none: with the claimed bound of 0.02 the test keeps its level of 0.025.

    A training with four times that, the planted fault, is called a violation more often.
    """
    level, runs = 0.025, 4000
    together = np.random.default_rng(0).random(runs) < truth
    called = sum(markov_test(50 * int(out), [0.02] * 50, level).p_value <= level for out in together)
    limit = level + 4 * math.sqrt(level / runs)
    assert (called / runs > limit) is alarms
