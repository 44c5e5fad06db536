from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.special import bdtr, expit, gammaln

from audits.statistics.metrics import clopper_pearson, rate_above, rate_below
from audits.statistics.two_arm import (
    ThresholdCount,
    best_of,
    by_ranks,
    by_split,
    claim_p_value,
    epsilon_bound,
    threshold_counts,
)
from tests.work import calls, memory

ALPHA, AUDITS = 0.05, 300
#: So many audits err more often than this with probability below 0.1 % where each errs with alpha.
ALLOWED = 28


@pytest.mark.parametrize(
    ("counts", "delta", "alpha", "expected"),
    [
        ((500, 500, 0, 500), 0, 0.01, 4.541916),
        ((90, 100, 5, 100), 0, 0.05, 1.987975),
        ((90, 100, 5, 100), 1e-5, 0.05, 1.987962),
        ((300, 1000, 10, 1000), 1e-5, 0.05, 2.697115),
        ((1000, 1000, 0, 1000), 1e-5, 0.05, 5.600577),
        ((50, 100, 50, 100), 0, 0.05, 0),
        ((487, 487, 512, 513), 1e-5, 0.1, 0),
    ],
)
def test_known_numbers(counts: tuple[int, int, int, int], delta: float, alpha: float, expected: float) -> None:
    assert epsilon_bound(*counts, delta, alpha) == pytest.approx(expected, abs=1e-6)


def test_one_sided_limits_are_the_two_sided_interval() -> None:
    counts = np.arange(31)
    both = [clopper_pearson(int(k), 30, 0.1) for k in counts]
    assert rate_below(counts, 30, 0.05) == pytest.approx([low for low, _ in both])
    assert rate_above(counts, 30, 0.05) == pytest.approx([high for _, high in both])


def test_the_other_direction_counts_too() -> None:
    assert epsilon_bound(95, 100, 10, 100, 0) == epsilon_bound(90, 100, 5, 100, 0)
    assert epsilon_bound(100, 100, 50, 100, 0) > 2  # FNR 0 against TNR 1/2


def test_delta_can_swallow_everything() -> None:
    assert epsilon_bound(5, 100, 0, 100, 0.2) == 0
    assert epsilon_bound(100, 100, 0, 100, 0.999) == 0


@pytest.mark.parametrize(
    ("counts", "delta", "fault"),
    [
        ((11, 10, 0, 10), 0, "11 of 10 models with"),
        ((0, 10, 0, 0), 0, "0 of 0 models without"),
        ((5, 10, 5, 10), 1, "delta is 1"),
    ],
)
def test_impossible_counts(counts: tuple[int, int, int, int], delta: float, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        epsilon_bound(*counts, delta)


def one(tp: int, n: int, fp: int, m: int) -> ThresholdCount:
    return ThresholdCount(threshold=0.0, true_positives=tp, with_count=n, false_positives=fp, without_count=m)


def test_p_value_is_the_alpha_at_which_the_bound_is_the_claim() -> None:
    assert claim_p_value([one(90, 100, 5, 100)], 1.9879745637, 0) == pytest.approx(0.05, abs=1e-6)
    assert claim_p_value([one(50, 100, 50, 100)], 0, 0) == 1
    assert 0 < claim_p_value([one(10_000, 10_000, 0, 10_000)], 0.1, 0) < 2e-15
    assert claim_p_value([one(500, 500, 0, 500)], 4.541916, 0) == pytest.approx(0.01, abs=1e-6)


def response_level(epsilon: float, alpha: float, models: int) -> float:
    """The exact chance that randomized response, at its natural threshold, gives a bound above its own epsilon."""
    rate = float(expit(epsilon))
    spread = 6 * math.sqrt(models * rate * (1 - rate))
    counts = np.arange(max(0, math.floor(models * rate - spread)), min(models, math.ceil(models * rate + spread)) + 1)
    log = gammaln(models + 1) - gammaln(counts + 1) - gammaln(models - counts + 1)
    chances = np.exp(log + counts * math.log(rate) + (models - counts) * math.log1p(-rate))
    return sum(
        p * q
        for p, tp in zip(chances, counts, strict=True)
        for q, tn in zip(chances, counts, strict=True)
        if epsilon_bound(int(tp), models, models - int(tn), models, 0, alpha) > epsilon
    )


@pytest.mark.parametrize(("epsilon", "models"), [(3.0, 400), (3.0, 1000), (4.0, 1000)])
def test_randomized_response_is_exceeded_at_most_alpha_of_the_time(epsilon: float, models: int) -> None:
    assert 0.02 < response_level(epsilon, ALPHA, models) <= ALPHA
    assert response_level(epsilon, 2 * ALPHA, models) > ALPHA  # both limits at alpha: the union bound is missing


Method = Callable[[np.ndarray, np.ndarray, int], float]


def certified(seen: tuple[ThresholdCount, ...]) -> float:
    return best_of(seen, 0.0, ALPHA).epsilon


def uncorrected(inner: np.ndarray, outer: np.ndarray, _: int) -> float:
    """Wrong: the best threshold, of every tenth, on the very scores that it is judged by."""
    thresholds = np.sort(np.concatenate([inner, outer]))[::10]
    tp = len(inner) - np.searchsorted(np.sort(inner), thresholds, "right")
    fp = len(outer) - np.searchsorted(np.sort(outer), thresholds, "right")
    tpr, fpr = rate_below(tp, len(inner), ALPHA / 2), rate_above(fp, len(outer), ALPHA / 2)
    with np.errstate(divide="ignore"):
        return float(max(np.log(tpr / fpr).max(), np.log((1 - fpr) / (1 - tpr)).max()))


METHODS: dict[str, Method] = {
    "ranks": lambda inner, outer, seed: certified(by_ranks(inner, outer)),
    "split": lambda inner, outer, seed: certified((by_split(inner, outer, 0.0, seed),)),
    "both": lambda inner, outer, seed: certified(threshold_counts(inner, outer, 0.0, seed)),
}


def laplace(seed: int, epsilon: float, models: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose every threshold beyond the two centres shows exactly ``epsilon``, so that many can err."""
    source = np.random.default_rng(seed)
    inner, outer = source.laplace(scale=1 / epsilon, size=(2, models))
    return inner + 1, outer


def failures(method: Method) -> int:
    return sum(method(*laplace(seed, 3.0, 3000), seed) > 3 for seed in range(AUDITS))


@pytest.mark.parametrize("name", METHODS)
def test_a_laplace_mechanism_is_exceeded_at_most_alpha_of_the_time(name: str) -> None:
    assert bdtr(ALLOWED, AUDITS, ALPHA) > 0.999
    assert failures(METHODS[name]) <= ALLOWED


def test_a_threshold_chosen_on_the_same_scores_is_noticed() -> None:
    assert failures(uncorrected) > ALLOWED


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ties", [False, True])
def test_null_scores_certify_something_at_most_alpha_of_the_time(name: str, ties: bool) -> None:
    source = np.random.default_rng(4)
    found = 0
    for seed in range(AUDITS):
        inner, outer = source.normal(size=(2, 100))
        if ties:
            inner, outer = np.round(inner), np.round(outer)
        found += METHODS[name](inner, outer, seed) > 0
    assert found <= ALLOWED


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_randomized_response_is_nearly_reached(epsilon: float) -> None:
    source = np.random.default_rng(9)
    rate = float(expit(epsilon))
    found = []
    for seed in range(30):
        inner, outer = source.random(5000) < rate, source.random(5000) >= rate
        found.append(METHODS["both"](inner.astype(float), outer.astype(float), seed))
    assert 0.85 * epsilon < np.mean(found) < epsilon


@pytest.mark.parametrize("swap", [False, True])
def test_ranks_say_the_same_of_either_arm(swap: bool) -> None:
    inner, outer = laplace(1, 3.0)
    if swap:
        inner, outer = -outer, -inner
    assert certified(by_ranks(inner, outer)) == pytest.approx(certified(by_ranks(-outer, -inner)))
    assert sum(look.share for look in by_ranks(inner, outer)) == pytest.approx(1)


def test_ties_at_a_rank_count_against_the_bound() -> None:
    inner, outer = np.ones(100), np.concatenate([np.zeros(90), np.ones(10)])
    (look,) = by_ranks(inner, outer, ranks=(0.05,))[:1]
    assert (look.threshold, look.true_positives, look.false_positives) == (1.0, 0, 5)


def test_a_split_does_not_depend_on_the_order_within_reason() -> None:
    inner, outer = laplace(5, 3.0)
    ordered = by_split(np.sort(inner), np.sort(outer), 0.0)
    assert ordered == by_split(np.sort(inner), np.sort(outer), 0.0)
    assert ordered.with_count == ordered.without_count == 210
    assert certified((ordered,)) > 1


def test_two_models_a_side_are_enough_to_say_nothing() -> None:
    assert certified(threshold_counts(np.array([1.0, 2.0]), np.array([0.0, -1.0]), 0.0)) == 0
    with pytest.raises(ValueError, match="1 scores with"):
        threshold_counts(np.array([1.0]), np.array([0.0, 1.0]), 0.0)
    with pytest.raises(ValueError, match="without the record hold NaN"):
        threshold_counts(np.array([1.0, 2.0]), np.array([0.0, math.nan]), 0.0)


def test_shares_of_alpha_must_not_exceed_it() -> None:
    with pytest.raises(ValueError, match="shares"):
        best_of((one(90, 100, 5, 100), one(90, 100, 5, 100)), 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_p_value_and_bound_agree(seed: int) -> None:
    seen = threshold_counts(*laplace(seed, 2.0), 1e-5, seed)
    bound = best_of(seen, 1e-5).epsilon
    assert claim_p_value(seen, bound, 1e-5) == pytest.approx(ALPHA, abs=1e-6)
    assert claim_p_value(seen, bound - 0.01, 1e-5) < ALPHA < claim_p_value(seen, bound + 0.01, 1e-5)


def test_a_hundred_thousand_models_are_no_more_steps_than_a_thousand() -> None:
    def bound(models: int) -> float:
        return best_of(threshold_counts(*laplace(0, 2.0, models), 1e-5), 1e-5).epsilon

    assert 1.9 < bound(100_000) < 2
    assert calls(partial(bound, 100_000)) < 1.5 * calls(partial(bound, 1_000)) < 1_000
    assert memory(partial(bound, 100_000)) < 100_000 * 200
