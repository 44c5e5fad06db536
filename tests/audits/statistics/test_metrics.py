from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binom

from audits.statistics.metrics import ONE_ADDED, auc, clopper_pearson, roc, tpr_at_fpr
from tests.few import few
from tests.work import calls, memory

POS = np.array([0.9, 0.8, 0.7, 0.6, 0.55])
NEG = np.array([0.65, 0.5, 0.4, 0.3, 0.2])


@pytest.mark.parametrize(
    ("k", "n", "expected"),
    [
        (90, 100, (0.823777, 0.950995)),
        (5, 100, (0.016432, 0.112835)),
        (50, 100, (0.398321, 0.601679)),
        (1000, 1000, (0.996318, 1.0)),
        (0, 1000, (0.0, 0.003682)),
    ],
)
def test_clopper_pearson(k: int, n: int, expected: tuple[float, float]) -> None:
    assert clopper_pearson(k, n) == pytest.approx(expected, abs=1e-6)


def test_clopper_pearson_refuses_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="6 of 5"):
        clopper_pearson(6, 5)


def test_auc_example() -> None:
    found = auc(POS, NEG)
    assert found.value == pytest.approx(0.92)
    assert found.stderr == pytest.approx(0.093808, abs=1e-6)
    assert (found.lower, found.upper) == pytest.approx((0.503, 1.0), abs=5e-4)
    assert found.interval == ONE_ADDED


def test_auc_counts_pairs_with_ties_as_half() -> None:
    source = np.random.default_rng(3)
    pos, neg = source.integers(0, 8, 40), source.integers(0, 7, 30)
    pairs = (pos[:, None] > neg).mean() + (pos[:, None] == neg).mean() / 2
    assert auc(pos, neg).value == pytest.approx(pairs)


@pytest.mark.parametrize("swap", [False, True])
def test_complete_separation_keeps_an_open_interval(swap: bool) -> None:
    high, low = np.arange(10.0, 20.0), np.arange(8.0)
    found = auc(low, high) if swap else auc(high, low)
    assert found.value == (0.0 if swap else 1.0)
    inner = found.upper if swap else 1 - found.lower
    assert 1 - 0.025 ** (1 / 18) < inner < 1 - 0.025 ** (1 / 8)  # between those of 18 and of 8 independent pairs


@pytest.mark.parametrize("pos", [np.zeros(50), np.zeros(1)])
def test_constant_scores_say_nothing(pos: np.ndarray) -> None:
    found = auc(pos, np.zeros(50))
    assert (found.value, found.lower, found.upper) == (0.5, 0.0, 1.0)


def test_auc_of_many_scores_takes_no_table_of_pairs() -> None:
    source = np.random.default_rng(0)
    pos, neg = source.normal(size=200_000), source.normal(size=200_000)
    assert auc(pos, neg).value == pytest.approx(0.5, abs=0.005)
    assert calls(lambda: auc(pos, neg)) == calls(lambda: auc(pos[:2_000], neg[:2_000]))
    assert memory(lambda: auc(pos, neg)) < 400_000 * 200  # all pairs: 4e10 numbers


@pytest.mark.parametrize("bad", [np.array([]), np.array([0.1, np.nan])])
def test_scores_must_be_there(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="members"):
        auc(bad, NEG)
    with pytest.raises(ValueError, match="nonmembers"):
        tpr_at_fpr(POS, bad, 0.1)


def test_tpr_examples() -> None:
    found = tpr_at_fpr(POS, NEG, 0.2)
    assert (found.threshold, found.true_positives, found.false_positives, found.reason) == (0.5, 5, 1, "")
    found = tpr_at_fpr(POS, NEG, 0.1)
    assert (found.threshold, found.true_positives, found.false_positives) == (0.65, 3, 0)
    assert (found.tpr_lower, found.tpr_upper) == pytest.approx((0.1466, 0.9473), abs=1e-4)
    assert found.reason == "a false positive rate of 0.1 needs at least 10 non-members; here are 5"


def test_ties_never_exceed_the_rate() -> None:
    neg = np.array([1.0] * 50 + [0.0] * 50)
    found = tpr_at_fpr(np.ones(10), neg, 0.1)
    assert (found.threshold, found.true_positives, found.false_positives) == (1.0, 0, 0)


@pytest.mark.parametrize(("rate", "count", "errors"), [(0.29, 100, 29), (0.07, 100, 7), (0.01, 100, 1), (0.01, 199, 1)])
def test_allowed_errors_are_whole_numbers(rate: float, count: int, errors: int) -> None:
    found = tpr_at_fpr(np.array([1e6]), np.arange(float(count)), rate)
    assert found.false_positives == errors
    assert found.reason == ""


def false_positive_rates(masses: Sequence[float], count: int, rate: float, sets: int) -> float:
    """How often the true false positive rate exceeds its limit; scores above ``i`` have the probability masses[i]."""
    source, wrong = np.random.default_rng(4), 0
    tails = np.array([*masses, 0.0])
    for _ in range(sets):
        drawn = (source.random(count)[:, None] < tails).sum(axis=1).astype(float)
        found = tpr_at_fpr(np.zeros(1), drawn, rate)
        wrong += tails[int(found.threshold)] > found.fpr_upper
    return wrong / sets


def test_ties_do_not_make_the_limit_of_the_false_positive_rate_too_small() -> None:
    """By the errors it was wrong in 9 % of these sets, where 5 % are allowed, as ties leave two chances of too few."""
    assert false_positive_rates([0.029, 0.003], 1000, 0.02, 3000) < 0.06
    untied = np.arange(1000.0)
    assert tpr_at_fpr(np.ones(1), untied, 0.02).fpr_upper == clopper_pearson(20, 1000, 0.1)[1]


def coverage(interval: Callable[[np.ndarray, np.ndarray], tuple[float, float]], rounds: int = 400) -> float:
    """How often the interval of null scores covers one half."""
    source = np.random.default_rng(11)
    held = 0
    for _ in range(rounds):
        lower, upper = interval(source.normal(size=100), source.normal(size=80))
        held += lower <= 0.5 <= upper
    return held / rounds


def test_null_scores_are_covered_at_the_nominal_rate() -> None:
    def honest(pos: np.ndarray, neg: np.ndarray) -> tuple[float, float]:
        found = auc(pos, neg)
        return found.lower, found.upper

    def standard_error_forgot_one_side(pos: np.ndarray, neg: np.ndarray) -> tuple[float, float]:
        found = auc(pos, neg)
        half = 1.96 * found.stderr / np.sqrt(2)
        return found.value - half, found.value + half

    def best_of_five(pos: np.ndarray, neg: np.ndarray) -> tuple[float, float]:
        source = np.random.default_rng(int(1e6 * abs(pos[0])))
        tries = [auc(source.permutation(np.r_[pos, neg])[:100], neg) for _ in range(4)] + [auc(pos, neg)]
        found = max(tries, key=lambda t: abs(t.value - 0.5))
        return found.lower, found.upper

    assert 0.92 <= coverage(honest) <= 0.98
    assert coverage(standard_error_forgot_one_side) < 0.9
    assert coverage(best_of_five, 100) < 0.98


@pytest.mark.parametrize("members", few([10, 15, 29, 40, 110], 0, 2))
def test_few_records_against_many(members: int) -> None:
    """At 0.2 % a normal interval errs 5 times in 1000 at 10 and at 15 against 200, and with a difference 12 times."""
    source = np.random.default_rng(members)
    scores = source.normal(size=(800, members + 200))
    found = [auc(row[:members], row[members:], 0.01) for row in scores]
    missed = sum(not each.lower <= 0.5 <= each.upper for each in found)
    assert missed <= 17, "0.1 % of binomials with 1 % are more"


def _exponential(area: float) -> Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]:
    return lambda source, m, n: (area / (1 - area) * source.exponential(size=m), source.exponential(size=n))


def _normal_in_spread(area: float) -> Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]:
    shift = math.sqrt(10) * float(ndtri(area))
    return lambda source, m, n: (source.normal(shift, 3, m), source.normal(size=n))


def _some_leak(area: float) -> Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]:
    """A share of the members exceeds all others; the rest are like them."""

    def scores(source: np.random.Generator, m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        return source.random(m) + 2 * (source.random(m) < 2 * area - 1), source.random(n)

    return scores


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    ("law", "sizes", "area"),
    few(
        [
            (_exponential, (13, 200), 0.98),
            (_normal_in_spread, (13, 200), 0.9),
            (_some_leak, (20, 20), 0.98),
            (_exponential, (5, 5), 0.9),
            (_normal_in_spread, (80, 80), 0.98),
            (_some_leak, (30, 300), 0.995),
        ],
        0,
        2,
    ),
)
def test_intervals_hold_for_few_records_and_near_the_ends(
    law: Callable[[float], Any], sizes: tuple[int, int], area: float, swap: bool
) -> None:
    """Of 600 intervals, a limit at 2.5 % may err 28 times (0.1 %); by DeLong's variance it errs over 50 times.

    ``swap`` turns members and others around, so that the AUC is near 0.
    """
    source, draw = np.random.default_rng(8), law(area)
    truth = 1 - area if swap else area
    pairs = [draw(source, *sizes) for _ in range(600)]
    found = [auc(b, a) if swap else auc(a, b) for a, b in pairs]
    assert sum(each.lower > truth for each in found) <= 28
    assert sum(each.upper < truth for each in found) <= 28


def test_delong_s_variance_misses_more_often() -> None:
    source, draw, above = np.random.default_rng(8), _exponential(0.98), 0
    for _ in range(600):
        found = auc(*draw(source, 13, 200))
        if found.stderr > 0 and found.value < 1:
            half = 2.2 * found.stderr / (found.value * (1 - found.value))
            above += math.log(found.value / (1 - found.value)) - half > math.log(0.98 / 0.02)
    assert above > 50


def test_the_limits_are_quantiles_under_random_weights() -> None:
    """One record more, which wins a third as often and counts by the sizes; weights are independent gamma variables."""
    source = np.random.default_rng(2)
    pos, neg = source.normal(1.5, 2, 14), source.normal(size=60)
    found, wins = auc(pos, neg, 0.1), pos[:, None] > neg
    value, total = wins.mean(), np.zeros(200_000)
    for shares, added in ((wins.mean(axis=1), 60 / 74), (wins.mean(axis=0), 14 / 74)):
        points, shapes = np.append(shares, value / 3), np.append(np.ones(len(shares)), added)
        mean = points @ shapes / shapes.sum()
        total += (source.gamma(shapes, size=(200_000, len(shapes))) - shapes) @ (points - mean) / shapes.sum()
    centre = value * (1 - 2 / 3 * (60 / 74) / (14 + 60 / 74)) * (1 - 2 / 3 * (14 / 74) / (60 + 14 / 74))
    assert found.lower == pytest.approx(centre + np.quantile(total, 0.05), abs=0.005)


@pytest.mark.parametrize("members", [10, 25, 118])
def test_the_order_of_the_records_says_nothing(members: int) -> None:
    """Files come sorted by their scores: pairs of the first ones would then all be won, or all lost."""
    source = np.random.default_rng(members)
    pos, neg = source.normal(size=members), source.normal(size=200)
    found = [auc(a, b, 0.01) for a, b in ((pos, neg), (np.sort(pos), -np.sort(-neg)), (-np.sort(-pos), np.sort(neg)))]
    assert all(each.lower <= 0.5 <= each.upper for each in found)
    for each in found:
        assert (each.lower, each.upper) == pytest.approx((found[0].lower, found[0].upper), abs=1e-9)
    first_pairs = int((-np.sort(-pos) > np.sort(neg)[:members]).sum())
    assert clopper_pearson(first_pairs, members, 0.01)[0] > 0.5


@pytest.mark.parametrize(("side", "rates"), [(118, (0.01, 0.03)), (30, (0.1, 0.3))])
def test_scores_that_are_nearly_all_equal(side: int, rates: tuple[float, float]) -> None:
    """The chance of missing the true AUC, summed over all counts of records that differ from the others."""
    truth, missed, by_variance = 0.5 + (rates[1] - rates[0]) / 2, 0.0, 0.0
    laws = [binom.pmf(np.arange(side + 1), side, rate) for rate in rates]
    for k, j in np.argwhere(np.outer(*laws) > 1e-7).tolist():
        found = auc(np.arange(side) < j, np.arange(side) < k, 0.002)
        missed += (not found.lower <= truth <= found.upper) * laws[0][k] * laws[1][j]
        half = 3.0902 * found.stderr / (found.value * (1 - found.value))
        logit = np.log(found.value / (1 - found.value))
        by_variance += (found.stderr > 0 and abs(logit - np.log(truth / (1 - truth))) > half) * laws[0][k] * laws[1][j]
    assert missed <= 0.002
    assert by_variance > 0.0025


def test_no_rate_of_zero_is_resolved() -> None:
    found = tpr_at_fpr(POS, NEG, 0.0)
    assert (found.true_positives, found.false_positives) == (3, 0)
    assert found.reason == "no number of non-members resolves a false positive rate of 0"


def test_roc_of_the_example() -> None:
    curve = roc(np.array([0.9, 0.8, 0.7, 0.6, 0.55]), np.array([0.65, 0.5, 0.4, 0.3, 0.2]))
    assert curve[:, 0].tolist() == [0, 0, 0, 0, 0.2, 0.2, 0.2, 0.4, 0.6, 0.8, 1]
    assert curve[:, 1].tolist() == [0, 0.2, 0.4, 0.6, 0.6, 0.8, 1, 1, 1, 1, 1]
    assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(0.92)


def test_the_area_under_the_roc_is_the_auc() -> None:
    source = np.random.default_rng(0)
    members, nonmembers = source.normal(0.5, size=900).round(1), source.normal(size=700).round(1)
    curve = roc(members, nonmembers)
    assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(auc(members, nonmembers).value)
    fine = roc(source.normal(0.5, size=9000), source.normal(size=9000))
    assert len(fine) <= 513
    assert fine[0].tolist() == [0, 0]
    assert fine[-1].tolist() == [1, 1]
    assert (np.diff(fine, axis=0) >= 0).all()
    assert roc(np.zeros(3), np.zeros(4)).tolist() == [[0, 0], [1, 1]]
