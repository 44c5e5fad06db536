"""Layers drawn by scores: the exact chances, the reference's numbers, and draws that follow them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import chi2

from privctl.train.methods.dpquant.draw import inclusion, order

#: Scores, beta and the chances of being among the first two, computed elsewhere in exact arithmetic.
SCORES, BETA = (0.0, 0.1, 0.2, 0.5, 1.0), 2.24
REFERENCE = (0.6404853758, 0.5533356757, 0.4644536355, 0.2551488107, 0.0865765024)
SEED = b"0123456789abcdef"


def by_sequences(scores: tuple[float, ...], beta: float, count: int) -> list[float]:
    """The definition: every sequence of draws without replacement, with its probability."""
    odds = [math.exp(-beta * score) for score in scores]
    found = [0.0] * len(odds)
    for sequence in itertools.permutations(range(len(odds)), count):
        chance = 1.0
        for done, layer in enumerate(sequence):
            left = math.fsum(each for other, each in enumerate(odds) if other not in sequence[:done])
            chance *= odds[layer] / left
        for layer in sequence:
            found[layer] += chance
    return found


def test_the_chances_are_the_references() -> None:
    assert inclusion(SCORES, BETA, 2) == pytest.approx(REFERENCE, abs=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("scores", [SCORES, (0.0, 20.0, 1.0, 15.0, 3.0), (-5.0, 4.0, 4.0, 4.0, 4.0)])
def test_the_chances_are_those_of_all_sequences(scores: tuple[float, ...], count: int) -> None:
    found = inclusion(scores, 1.0, count)
    assert found == pytest.approx(by_sequences(scores, 1.0, count), abs=1e-12)
    assert found.sum() == pytest.approx(count, abs=1e-12)


def test_none_and_all() -> None:
    assert inclusion(SCORES, BETA, 0).tolist() == [0] * 5
    assert inclusion(SCORES, BETA, 5).tolist() == [1] * 5
    assert inclusion(SCORES, 0.0, 2) == pytest.approx([0.4] * 5, abs=1e-12)


def statistic(taken: np.ndarray, chances: np.ndarray) -> float:
    """Of the counts (n,) of being taken in so many turns, as far from ``chances`` as their covariance allows."""
    turns = len(taken)
    excess = (taken.mean(0) - chances)[:-1]  # the counts add up, so the last one says nothing
    covariance = np.cov(taken[:, :-1].T)
    return float(turns * excess @ np.linalg.solve(covariance, excess))


def test_draws_follow_the_chances_and_not_the_odds() -> None:
    turns, limit = 10_000, chi2.isf(1e-6, 4)
    taken = np.zeros((turns, 5))
    for turn in range(turns):
        taken[turn, order(SCORES, BETA, SEED, turn)[:2]] = 1
    assert statistic(taken, np.array(REFERENCE)) < limit
    odds = np.exp(-BETA * np.array(SCORES))
    assert statistic(taken, np.minimum(1, 2 * odds / odds.sum())) > 3 * limit  # drawn with replacement


def test_a_draw_is_made_again_from_its_seed_and_turn() -> None:
    first = [order(SCORES, BETA, SEED, turn).tolist() for turn in range(50)]
    assert first == [order(SCORES, BETA, SEED, turn).tolist() for turn in range(50)]
    assert first != [order(SCORES, BETA, b"another", turn).tolist() for turn in range(50)]
    assert len({tuple(one) for one in first}) > 5
    assert all(sorted(one) == list(range(5)) for one in first)


def test_scores_far_apart_leave_no_chance() -> None:
    """Rates that no float holds: the quotients of some are infinite, of others zero."""
    np.testing.assert_allclose(inclusion([3.0, 1.0, 2.0, 4.0], 1e9, 2), [0, 1, 1, 0], atol=1e-12)
