from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import bdtr

from audits.statistics.metrics import auc
from audits.statistics.paired import auc_difference

#: Ovarian cancer patients of DeLong, DeLong and Clarke-Pearson 1988: albumin, total protein, K-G score, outcome.
# fmt: off
PATIENTS = np.array([
    3.0, 5.8, 10, 0, 3.2, 6.3, 5, 1, 3.9, 6.8, 3, 1, 2.8, 4.8, 6, 0, 3.2, 5.8, 3, 1, 0.9, 4.0, 5, 0, 2.5, 5.7, 8, 0,
    1.6, 5.6, 5, 1, 3.8, 5.7, 5, 1, 3.7, 6.7, 6, 1, 3.2, 5.4, 4, 1, 3.8, 6.6, 6, 1, 4.1, 6.6, 5, 1, 3.6, 5.7, 5, 1,
    4.3, 7.0, 4, 1, 3.6, 6.7, 4, 0, 2.3, 4.4, 6, 1, 4.2, 7.6, 4, 0, 4.0, 6.6, 6, 0, 3.5, 5.8, 6, 1, 3.8, 6.8, 7, 1,
    3.0, 4.7, 8, 0, 4.5, 7.4, 5, 1, 3.7, 7.4, 5, 1, 3.1, 6.6, 6, 1, 4.1, 8.2, 6, 1, 4.3, 7.0, 5, 1, 4.3, 6.5, 4, 1,
    3.2, 5.1, 5, 1, 2.6, 4.7, 6, 1, 3.3, 6.8, 6, 0, 1.7, 4.0, 7, 0, 3.7, 6.1, 5, 1, 3.3, 6.3, 7, 1, 4.2, 7.7, 6, 1,
    3.5, 6.2, 5, 1, 2.9, 5.7, 9, 0, 2.1, 4.8, 7, 1, 2.8, 6.2, 8, 0, 4.0, 7.0, 7, 1, 3.3, 5.7, 6, 1, 3.7, 6.9, 5, 1,
    3.6, 6.6, 5, 1,
]).reshape(43, 4)
# fmt: on


@pytest.mark.parametrize(("column", "difference", "stderr"), [(0, 0.0108, 0.0953), (1, -0.0780, 0.1046)])
def test_published_comparison(column: int, difference: float, stderr: float) -> None:
    yes, no = PATIENTS[PATIENTS[:, 3] == 1], PATIENTS[PATIENTS[:, 3] == 0]
    found = auc_difference(yes[:, column], no[:, column], -yes[:, 2], -no[:, 2])
    assert found == pytest.approx((difference, stderr), abs=5e-5)


def brute_force(members: np.ndarray, nonmembers: np.ndarray) -> float:
    """The variance of the difference from the table of all pairs; arrays of shape (2, records)."""
    won = (members[:, :, None] > nonmembers[:, None, :]) + 0.5 * (members[:, :, None] == nonmembers[:, None, :])
    contrast = np.array([1, -1])
    by_member, by_nonmember = np.cov(won.mean(axis=2)), np.cov(won.mean(axis=1))
    return float(contrast @ (by_member / members.shape[1] + by_nonmember / nonmembers.shape[1]) @ contrast)


@pytest.mark.parametrize("ties", [False, True])
def test_against_all_pairs(ties: bool) -> None:
    source = np.random.default_rng(1)
    members, nonmembers = source.normal(0.7, 1, (2, 25)), source.normal(size=(2, 40))
    if ties:
        members, nonmembers = np.round(members), np.round(nonmembers)
    difference, stderr = auc_difference(members[0], nonmembers[0], members[1], nonmembers[1])
    assert stderr == pytest.approx(math.sqrt(brute_force(members, nonmembers)))
    assert difference == pytest.approx(auc(members[0], nonmembers[0]).value - auc(members[1], nonmembers[1]).value)


def simulated(seed: int, size: int = 150) -> tuple[np.ndarray, ...]:
    """Two correlated scores whose true AUCs are equal."""
    source = np.random.default_rng(seed)
    found = []
    for shift in (1.0, 0.0):
        common = source.normal(size=size)
        found.append(common + shift + 0.7 * source.normal(size=(2, size)))
    (one_in, two_in), (one_out, two_out) = found
    return one_in, one_out, two_in, two_out


def misses(audits: int, paired: bool) -> int:
    """How often the 95 % interval leaves out the true difference, 0; unpaired leaves out the covariance, wrongly."""
    count = 0
    for seed in range(audits):
        scores = simulated(seed)
        if not paired:  # the second score's records shifted by one, which is what leaving the pairing out amounts to
            scores = (*scores[:2], np.roll(scores[2], 1), np.roll(scores[3], 1))
        difference, stderr = auc_difference(*scores)
        count += abs(difference) > 1.96 * stderr
    return count


def test_paired_intervals_cover_at_their_level() -> None:
    low, high = 7, 36
    assert bdtr(high, 400, 0.05) - bdtr(low - 1, 400, 0.05) > 0.998
    assert low <= misses(400, paired=True) <= high
    assert misses(400, paired=False) < low  # far too wide


def test_the_same_order_twice_has_no_standard_error() -> None:
    members, nonmembers = np.array([3.0, 1.0, 2.5]), np.array([0.0, 2.0])
    difference, stderr = auc_difference(members, nonmembers, np.exp(members), np.exp(nonmembers))
    assert difference == 0
    assert math.isnan(stderr)


def test_complete_separation_by_both_has_no_standard_error() -> None:
    difference, stderr = auc_difference(np.arange(5, 9.0), np.arange(4.0), np.arange(9, 5.0, -1), np.arange(4.0))
    assert difference == 0
    assert math.isnan(stderr)


def test_scores_of_other_records_are_refused() -> None:
    with pytest.raises(ValueError, match="not of the same records"):
        auc_difference(np.zeros(3), np.zeros(3), np.zeros(4), np.zeros(3))
