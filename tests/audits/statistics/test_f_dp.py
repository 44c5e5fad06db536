from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import bdtrc, expit, ndtr

from audits.statistics import one_run
from audits.statistics.f_dp import epsilon_bound, epsilon_of_mu, mu_bound, rejects
from privctl.accounting.gaussian import epsilon_at
from tests.work import calls


@pytest.mark.parametrize(
    ("counts", "mu", "at_5", "at_6"),
    [
        ((1000, 1000, 750), 0.46063, 1.8189, 2.06011),
        ((1000, 100, 95), 0.78681, 3.3233, 3.72725),
        ((1000, 50, 50), 0.93734, 4.06191, 4.54036),
    ],
)
def test_known_bounds_on_mu(counts: tuple[int, int, int], mu: float, at_5: float, at_6: float) -> None:
    found = mu_bound(*counts)
    assert found == pytest.approx(mu, abs=1e-5)
    assert epsilon_of_mu(found, 1e-5) == pytest.approx(at_5, abs=1e-4)
    assert epsilon_of_mu(found, 1e-6) == pytest.approx(at_6, abs=1e-4)


@pytest.mark.parametrize("counts", [(1000, 1000, 500), (1000, 100, 50), (50, 10, 5), (10, 10, 0), (10, 0, 0)])
def test_half_right_says_nothing(counts: tuple[int, int, int]) -> None:
    assert mu_bound(*counts) == 0
    assert epsilon_bound(*counts, 1e-5) == 0


@pytest.mark.parametrize(
    ("counts", "delta", "expected"),
    [
        ((1000, 1000, 750), 1e-5, 0.97050),
        ((1000, 100, 95), 1e-5, 2.15574),
        ((1000, 50, 50), 1e-5, 2.78342),
        ((100, 100, 80), 0, 0.94347),
    ],
)
def test_known_bounds_on_epsilon(counts: tuple[int, int, int], delta: float, expected: float) -> None:
    assert epsilon_bound(*counts, delta) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 1.993091), (1, 4.377178), (2, 9.997256), (4, 24.381611)])
def test_known_conversions(mu: float, epsilon: float) -> None:
    assert epsilon_of_mu(mu, 1e-5) == pytest.approx(epsilon, abs=1e-6)
    assert epsilon_of_mu(mu, 1e-5) == pytest.approx(epsilon_at(1e-5, mu), abs=1e-6)


@pytest.mark.parametrize("mu", [1e-4, 0.03, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01])
def test_conversion_is_never_above(mu: float, delta: float) -> None:
    found = epsilon_of_mu(mu, delta)

    def delta_of(epsilon: float) -> mpmath.mpf:
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)

    with mpmath.workdps(60):
        assert found == 0 or delta_of(found) > delta * (1 - 1e-8)
        assert delta_of(found + 1e-6) < delta


def test_edges_of_the_conversion() -> None:
    assert epsilon_of_mu(0, 1e-5) == 0
    with pytest.raises(ValueError, match="delta 0"):
        epsilon_of_mu(1, 0)
    with pytest.raises(ValueError, match="6 right of 5"):
        mu_bound(10, 5, 6)
    with pytest.raises(ValueError, match="alpha is 0.7"):
        mu_bound(10, 5, 5, 0.7)
    with pytest.raises(ValueError, match="delta is 1"):
        epsilon_bound(10, 5, 5, 1)


def test_more_right_guesses_reject_more() -> None:
    found = [mu_bound(300, 100, c) for c in range(101)]
    assert found == sorted(found)


def test_many_canaries_take_a_few_steps_each() -> None:
    assert mu_bound(100_000, 100_000, 52_000) == pytest.approx(0.034163, abs=1e-6)
    assert calls(lambda: mu_bound(100_000, 100_000, 52_000)) < 5 * 100_000


def level(m: int, chance: float, alpha: float) -> float:
    """The exact chance that fair coins, guessed right with ``chance``, reject mu 0."""
    least = next(c for c in range(m + 1) if rejects(m, m, c, lambda y: y, alpha))
    return float(bdtrc(least - 1, m, chance))


@pytest.mark.parametrize("m", [100, 1000])
def test_null_is_rejected_at_most_alpha_of_the_time(m: int) -> None:
    assert 0.02 < level(m, 0.5, 0.05) <= 0.05
    assert level(m, 0.5, 0.15) > 0.05  # three times the alpha shows


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_gaussian_canaries_never_exceed_their_mu(mu: float) -> None:
    # One Gaussian mechanism a canary, guessed by its sign; almost the most right guesses that can happen.
    m, chance = 2000, float(ndtr(mu / 2))
    lucky = int(m * chance + 6 * np.sqrt(m * chance * (1 - chance)))
    assert 0 < mu_bound(m, m, lucky) < mu


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_a_gaussian_reading_refutes_a_true_claim_and_the_test_of_the_claim_does_not(epsilon: float) -> None:
    # Randomized response is no Gaussian mechanism: its mu, read as an epsilon, is too large.
    correct = round(10_000 * float(expit(epsilon)))
    assert epsilon_of_mu(mu_bound(10_000, 10_000, correct), 1e-5) > epsilon
    assert 0.9 * epsilon < epsilon_bound(10_000, 10_000, correct, 1e-5) < epsilon
    assert one_run.epsilon_bound(10_000, 10_000, correct, 1e-5) < epsilon
