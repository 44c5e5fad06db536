"""Several sets of guesses on one run: the choice among them is paid for, and the two theorems share one event."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.special import bdtrc, expit

from audits.statistics import f_dp, one_run
from audits.statistics.several_guesses import (
    GuessCount,
    ceiling,
    curve_p_value,
    epsilon_bound,
    mu_bound,
    rejects_claim,
)

#: 300 audits err more often than this with probability below 0.1 % where each errs with 5 %.
ALLOWED = 28
SHARES = (0.02, 0.2, 0.5, 1.0)


def counted(scores: np.ndarray, coins: np.ndarray, shares: Sequence[float] = SHARES) -> list[GuessCount]:
    found = []
    for share in shares:
        half = max(1, round(share * len(scores) / 2))
        guesses = one_run.divide(scores) if share == 1 else one_run.guess(scores, half, half)
        correct = int((guesses == coins).sum())
        found.append(GuessCount(canaries=len(scores), guesses=2 * half, correct=correct))
    return found


def rejection_rate(
    scores_of: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    rejected: Callable[[list[GuessCount]], bool],
    shares: Sequence[float] = SHARES,
) -> int:
    """Of 300 audits of 200 canaries with fair coins, how many reject."""
    source, wrong = np.random.default_rng(7), 0
    for _ in range(300):
        coins = np.where(source.random(200) < 0.5, 1, -1)
        wrong += rejected(counted(scores_of(source, coins), coins, shares))
    return wrong


def gaussian(mu: float) -> Callable[[np.random.Generator, np.ndarray], np.ndarray]:
    return lambda source, coins: source.normal(size=len(coins)) + mu * (coins > 0)


def response(epsilon: float) -> Callable[[np.random.Generator, np.ndarray], np.ndarray]:
    """Randomized response for every canary: each bit as it is with the chance that pure epsilon-DP allows at most."""
    return lambda source, coins: (
        coins * np.where(source.random(len(coins)) < expit(epsilon), 1, -1) + 1e-6 * (source.random(len(coins)))
    )


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_randomized_response_at_its_own_epsilon_is_seldom_refuted(epsilon: float) -> None:
    found = rejection_rate(response(epsilon), lambda sets: rejects_claim(sets, epsilon, 0.0, 0.05))
    assert found <= ALLOWED


def test_sets_whose_choice_is_not_paid_for_are_noticed() -> None:
    many = [k / 100 for k in range(2, 101, 4)]

    def without(sets: list[GuessCount]) -> bool:
        return any(one_run.p_value(*each.counts, 0.0, 0.0) < 0.05 for each in sets)

    assert rejection_rate(gaussian(0), without, many) > ALLOWED
    assert rejection_rate(gaussian(0), lambda sets: rejects_claim(sets, 0.0, 0.0, 0.05), many) <= ALLOWED


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_mechanism_s_own_curve_is_seldom_refuted(mu: float) -> None:
    curve = f_dp.gaussian(mu)
    found = rejection_rate(gaussian(mu), lambda sets: any(f_dp.rejects(*e.counts, curve, 0.05 / 4) for e in sets))
    assert found <= ALLOWED


def test_independent_canaries_would_be_a_wrong_theorem() -> None:
    """(0, 0.1)-DP, by showing all coins with probability 0.1: a test that takes canaries one by one refutes it then."""
    shows = [GuessCount(canaries=200, guesses=200, correct=200)]
    assert rejects_claim(shows, 0.0, 0.0, 0.05)
    assert not rejects_claim(shows, 0.0, 0.1, 0.05)
    assert curve_p_value(shows, f_dp.lines([(0.0, 0.1)])) > 0.1


@pytest.mark.parametrize(
    ("counts", "delta", "expected"),
    # The larger of what two public implementations give for the one set of guesses.
    [((1000, 100, 95), 1e-5, 2.165176), ((1000, 50, 50), 1e-5, 2.78342), ((1000, 1000, 750), 1e-5, 0.976367)],
)
def test_one_set_is_the_larger_of_two_published_bounds(
    counts: tuple[int, int, int], delta: float, expected: float
) -> None:
    one = GuessCount(canaries=counts[0], guesses=counts[1], correct=counts[2])
    assert epsilon_bound([one], delta, 0.05) == (pytest.approx(expected, abs=1e-5), 0)
    nothing = GuessCount(canaries=1000, guesses=1000, correct=500)
    assert epsilon_bound([nothing, one], delta, 0.1)[0] == pytest.approx(expected, abs=1e-5)
    assert epsilon_bound([nothing, one], delta, 0.1)[1] == mu_bound([nothing, one], 0.1)[1] == 1


def test_the_lower_of_two_thresholds_keeps_the_level() -> None:
    """Exactly: the chance that either theorem refutes randomized response is that of the lower threshold."""
    m, epsilon = 120, 1.5
    least = next(
        v for v in range(m + 1) if rejects_claim([GuessCount(canaries=m, guesses=m, correct=v)], epsilon, 0, 0.05)
    )
    assert 0.02 < float(bdtrc(least - 1, m, expit(epsilon))) <= 0.05
    assert float(bdtrc(least - 2, m, expit(epsilon))) > 0.05, "one right guess fewer would break the level"


def test_more_sets_cost_little_and_raise_the_ceiling() -> None:
    for m, before, after in ((250, 2.560, 3.887), (500, 3.262, 4.585), (1000, 3.946, 5.281), (10_000, 5.841, 7.585)):
        tenths = 2 * max(10, m // 10)
        assert one_run.epsilon_bound(m, tenths, tenths, 1e-5, 0.025) == pytest.approx(before, abs=6e-4)
        sizes = [(m, 2 * max(10, round(share * m / 2))) for share in SHARES]
        assert ceiling(sizes, 1e-5, 0.025) == pytest.approx(after, abs=6e-4)


def test_a_curve_s_p_value_is_where_its_test_turns() -> None:
    one, curve = GuessCount(canaries=1000, guesses=100, correct=95), f_dp.gaussian(0.6)
    p = curve_p_value([one], curve)
    assert 1e-6 < p < 0.05
    assert f_dp.rejects(*one.counts, curve, p * 1.01)
    assert not f_dp.rejects(*one.counts, curve, p / 1.01)
    assert curve_p_value([one, one], curve) == pytest.approx(2 * p)


def test_points_of_a_gaussian_make_a_curve_just_below_it() -> None:
    from privctl.accounting.gaussian import delta_at

    mu = 1.0
    points = [(e, delta_at(e, mu)) for e in np.linspace(0, 8, 81)]
    curve, whole = f_dp.lines(points), f_dp.gaussian(mu)
    grid = np.linspace(1e-6, 1 - 1e-6, 400)
    values, exact = np.array([curve(y) for y in grid]), np.array([whole(y) for y in grid])
    assert (values <= exact + 1e-12).all()
    assert (exact - values).max() < 2e-3
    assert (np.diff(values) >= 0).all()
    slopes = np.diff(values)
    assert (np.diff(slopes) >= -1e-12).all(), "convex"
    with pytest.raises(ValueError, match="a curve needs points"):
        f_dp.lines([(0.0, 1.5)])


def test_a_claim_too_large_to_refute() -> None:
    perfect = [GuessCount(canaries=1000, guesses=1000, correct=1000)]
    assert not rejects_claim(perfect, 1000.0, 0.0, 0.05)
    assert math.isclose(epsilon_bound(perfect, 0.0, 0.05)[0], one_run.epsilon_bound(1000, 1000, 1000, 0), rel_tol=1e-3)
