"""Right guesses on independent canaries: the exact law where there is one, simulated attacks, and a shared channel."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import bdtrc, ndtr, ndtri

from audits.statistics import f_dp
from audits.statistics.independent_guesses import p_value


def gaussian_points(mu: float) -> list[tuple[float, float]]:
    """Dong, Roth and Su 2022, corollary 1."""
    epsilons = np.linspace(0, 12, 121)
    first, second = ndtr(-epsilons / mu + mu / 2), ndtr(-epsilons / mu - mu / 2)
    return list(zip(epsilons.tolist(), (first - np.exp(epsilons) * second).tolist(), strict=True))


def right_guesses(mu: float, canaries: int, guesses: int, runs: int) -> np.ndarray:
    """Of the best attack on canaries with Gaussian noise: the guesses are those farthest from the middle."""
    source = np.random.default_rng(3)
    coins = source.random((runs, canaries)) < 0.5
    scores = mu * (coins - 0.5) + source.normal(size=coins.shape)
    chosen = np.argsort(-np.abs(scores), axis=1)[:, :guesses]
    right = (scores > 0) == coins
    return np.take_along_axis(right, chosen, axis=1).sum(axis=1)


def test_randomized_response_is_binomial_whatever_is_guessed() -> None:
    for epsilon, canaries, guesses, right in ((1.0, 1000, 1000, 760), (2.0, 500, 100, 95), (0.0, 301, 6, 6)):
        exact = bdtrc(right - 1, guesses, 1 / (1 + np.exp(-epsilon)))
        assert p_value(canaries, guesses, right, [(epsilon, 0.0)]) == pytest.approx(exact, rel=1e-6)
    assert p_value(1000, 1000, 775, [(0.0, 0.5)]) == pytest.approx(0.03566, abs=1e-5)
    assert p_value(1000, 1000, 0, [(1.0, 0.0)]) == 1


@pytest.mark.parametrize("guesses", [20, 200, 400])
def test_the_best_attack_is_as_likely_as_it_says(guesses: int) -> None:
    """A little less likely than the bound, for points bound the curve: at a level, no more errors than that."""
    mu, canaries, runs = 1.5, 400, 4000
    found = right_guesses(mu, canaries, guesses, runs)
    points = gaussian_points(mu)
    for right in np.quantile(found, (0.5, 0.9, 0.97), method="nearest"):
        frequency, expected = float((found >= right).mean()), p_value(canaries, guesses, int(right), points)
        error = 4 * np.sqrt(expected / runs)
        assert frequency - error <= expected <= frequency * 1.1 + error
    right = int(np.median(found))
    less, same, more = (p_value(canaries, guesses, right, gaussian_points(mu * by)) for by in (1 / 1.2, 1.0, 1.2))
    assert less < same < more, "less noise makes it more likely"


def test_a_channel_for_all_canaries_is_not_of_this_kind() -> None:
    """All coins are shown with probability 0.1, nothing otherwise: (0, 0.1)-DP, which only the general test allows."""
    source = np.random.default_rng(4)
    points, rejected, generally, runs = [(0.0, 0.1)], 0, 0, 400
    for _ in range(runs):
        right = 300 if source.random() < 0.1 else int(source.binomial(300, 0.5))
        rejected += p_value(300, 300, right, points) < 0.05
        generally += f_dp.rejects(300, 300, right, f_dp.lines(points), 0.05)
    assert rejected > 0.08 * runs
    assert generally < 0.05 * runs


def test_of_the_two_tests_this_one_sees_more() -> None:
    points = gaussian_points(1.0)
    right = int(1000 * (ndtr(0.5) + 0.04))
    assert p_value(1000, 1000, right, points) < 0.01
    assert not f_dp.rejects(1000, 1000, right, f_dp.lines(points), 0.01)
    assert ndtri(p_value(1000, 1000, int(1000 * ndtr(0.5)), points)) == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize(
    ("counts", "points"), [((10, 11, 5), [(1.0, 0.0)]), ((10, 10, 5), []), ((10, 10, 5), [(-1.0, 0.0)])]
)
def test_impossible_counts_and_points(counts: tuple[int, int, int], points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match=r"each may not exceed|a curve needs points"):
        p_value(*counts, points)
