"""A lower bound on epsilon from many models, each trained with or without one record and scored once.

(epsilon, delta)-DP bounds both error rates of every test between the two: TPR <= exp(epsilon) FPR + delta and
TNR <= exp(epsilon) FNR + delta. Exact binomial limits of the two rates, each failing with probability alpha / 2, turn
counts into a bound (Jagielski, Ullman and Oprea 2020; Nasr et al. 2021). Both directions read the same two limits, so
they need no further correction. Models must be independent: records scored by one model are not.

A threshold chosen on the same scores that it is evaluated on gives a positive epsilon where there is none. Two methods
are valid:

- *ranks*: the threshold is an order statistic of one arm, of a rank fixed by the arm's size. The rate at which this
  arm exceeds it has a beta distribution, whose quantile is the binomial limit at that rank, whatever the distribution
  of the scores; given the threshold, the other arm's count is binomial. Ranks are tried under a Bonferroni correction.
- *split*: a random part of each arm chooses the threshold, the rest evaluates it.

Measured at alpha 0.05, delta 1e-5, as the mean bound over 100 audits of 1000 and 1000 models: scores that shift by 1,
2 and 4 standard deviations give 1.34, 3.11 and 4.98 by ranks, 1.24, 2.93 and 4.35 by splitting 3 : 7, and 0.95, 2.75
and 4.27 by splitting 1 : 1; a simultaneous (Berk-Jones) band over all thresholds gives 1.31, 2.99 and 4.64. Scores with
two values, whose ties blunt ranks, at a true 1 and 3 give 0.42 and 2.56 by ranks, 0.84 and 2.73 by splitting, 0.78 and
2.59 by the band. ``threshold_counts`` does both with half of alpha each, and is never far from the better: 1.31, 3.05,
4.86, 0.82 and 2.70. Models that do not differ give any of them a bound above 0 in at most 1 % of audits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.statistics.metrics import rate_above, rate_below
from audits.statistics.search import smallest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ranks of thresholds, as the share of the arm's scores on the wrong side: none, few, and half.
RANKS = (0.0, 0.05, 0.5)
#: The part of each arm that chooses the threshold of a split.
CALIBRATION = 0.3
#: That threshold is chosen with limits at about one standard deviation: wider ones would avoid the tails, where
#: epsilon shows.
_CHOOSING_ALPHA = 0.3
#: The smallest p-value distinguished from 0.
_SMALLEST_P = 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCount:
    """One threshold, and how many models with the record (``true_positives``) and without it score beyond it.

    ``share`` is its share of alpha. If the threshold is an order statistic of an arm, that arm's count is its rank;
    ties can make the true count lower.
    """

    threshold: float
    true_positives: int
    with_count: int
    false_positives: int
    without_count: int
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoArmBound:
    """``epsilon`` is a lower bound at ``delta`` that holds with probability 1 - ``alpha`` over all ``tried`` counts."""

    epsilon: float
    delta: float
    alpha: float
    tried: int
    look: ThresholdCount


def epsilon_bound(
    true_positives: int, with_count: int, false_positives: int, without_count: int, delta: float, alpha: float = 0.05
) -> float:
    """The lower bound from counts at a threshold chosen independently of them; 0 if they show nothing.

    ``epsilon_bound(90, 100, 5, 100, 0)`` is 1.987975.
    """
    _check(true_positives, with_count, false_positives, without_count, delta)
    return max(0.0, float(_log_ratio(true_positives, with_count, false_positives, without_count, delta, alpha)))


def claim_p_value(counts: Sequence[ThresholdCount], epsilon: float, delta: float) -> float:
    """The p-value of the claim of (``epsilon``, ``delta``)-DP: the least alpha whose bound exceeds ``epsilon``.

    90 of 100 against 5 of 100 give 0.05 for the claim of 1.987975 at delta 0.
    """
    p_value = 1.0
    for count in counts:
        numbers = (count.true_positives, count.with_count, count.false_positives, count.without_count)
        _check(*numbers, delta)
        log_p = smallest(partial(_exceeds, numbers, epsilon, delta), math.log(_SMALLEST_P), 0.0, 1e-9)
        p_value = min(p_value, math.exp(log_p) / count.share)
    return p_value


def _exceeds(counts: tuple[int, int, int, int], epsilon: float, delta: float, log_alpha: float) -> bool:
    return float(_log_ratio(*counts, delta, math.exp(log_alpha))) > epsilon


def best_of(counts: Sequence[ThresholdCount], delta: float, alpha: float = 0.05) -> TwoArmBound:
    """The best bound from several counts, each at its share of ``alpha``; the shares must not exceed 1 together."""
    if sum(count.share for count in counts) > 1 + 1e-9:
        raise ValueError("the counts' shares of alpha exceed 1 together")
    bounds = [
        epsilon_bound(
            count.true_positives,
            count.with_count,
            count.false_positives,
            count.without_count,
            delta,
            alpha * count.share,
        )
        for count in counts
    ]
    best = int(np.argmax(bounds))
    return TwoArmBound(epsilon=bounds[best], delta=delta, alpha=alpha, tried=len(counts), look=counts[best])


def threshold_counts(
    with_scores: NDArray[Any], without_scores: NDArray[Any], delta: float, seed: int = 0
) -> tuple[ThresholdCount, ...]:
    """Ranks and a split, half of alpha each; a higher score is more like a model trained with the record.

    Each arm holds one score a model, and needs 2. ``seed`` draws the split (numpy's PCG64).
    """
    return (
        *by_ranks(with_scores, without_scores, share=0.5),
        by_split(with_scores, without_scores, delta, seed=seed, share=0.5),
    )


def by_ranks(
    with_scores: NDArray[Any],
    without_scores: NDArray[Any],
    ranks: Sequence[float] = RANKS,
    share: float = 1.0,
) -> tuple[ThresholdCount, ...]:
    """A threshold at each rank of either arm. Only scores strictly beyond it count, so ties weaken the bound."""
    with_sorted, without_sorted = np.sort(with_scores), np.sort(without_scores)
    m, n = len(with_sorted), len(without_sorted)
    _require(with_sorted, without_sorted, least=1)
    thresholds = []
    for k in sorted({int(rank * n) for rank in ranks}):
        threshold = without_sorted[n - 1 - k]
        thresholds.append((threshold, m - int(np.searchsorted(with_sorted, threshold, "right")), k))
    for k in sorted({int(rank * m) for rank in ranks}):
        threshold = with_sorted[k]
        thresholds.append((threshold, m - k, n - int(np.searchsorted(without_sorted, threshold, "left"))))
    return tuple(
        ThresholdCount(
            threshold=float(threshold),
            true_positives=hits,
            with_count=m,
            false_positives=errors,
            without_count=n,
            share=share / len(thresholds),
        )
        for threshold, hits, errors in thresholds
    )


def by_split(
    with_scores: NDArray[Any],
    without_scores: NDArray[Any],
    delta: float,
    seed: int = 0,
    calibration: float = CALIBRATION,
    share: float = 1.0,
) -> ThresholdCount:
    """Choose the threshold on ``calibration`` of each arm, drawn by ``seed``, and count on the rest."""
    _require(with_scores, without_scores, least=2)
    random = np.random.default_rng(seed)
    halves = []
    for scores in (with_scores, without_scores):
        cut = min(max(1, round(calibration * len(scores))), len(scores) - 1)
        halves.append(np.split(random.permutation(scores), [cut]))
    (choose_in, judge_in), (choose_out, judge_out) = halves
    thresholds = np.unique(np.concatenate([choose_in, choose_out]))
    bounds = _log_ratio(
        len(choose_in) - np.searchsorted(np.sort(choose_in), thresholds, "right"),
        len(choose_in),
        len(choose_out) - np.searchsorted(np.sort(choose_out), thresholds, "right"),
        len(choose_out),
        delta,
        _CHOOSING_ALPHA,
    )
    threshold = thresholds[int(np.argmax(bounds))]
    return ThresholdCount(
        threshold=float(threshold),
        true_positives=int((judge_in > threshold).sum()),
        with_count=len(judge_in),
        false_positives=int((judge_out > threshold).sum()),
        without_count=len(judge_out),
        share=share,
    )


def _log_ratio(
    true_positives: NDArray[Any] | int,
    with_count: int,
    false_positives: NDArray[Any] | int,
    without_count: int,
    delta: float,
    alpha: float,
) -> NDArray[np.float64]:
    """The larger of the two directions' logarithms, not clipped at 0; -inf where delta exceeds the rate."""
    tpr = rate_below(true_positives, with_count, alpha / 2)
    fpr = rate_above(false_positives, without_count, alpha / 2)
    with np.errstate(divide="ignore"):
        forward = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        backward = np.log(np.maximum(1 - fpr - delta, 0.0)) - np.log1p(-tpr)
    larger: NDArray[np.float64] = np.maximum(forward, backward)
    return larger


def _check(true_positives: int, with_count: int, false_positives: int, without_count: int, delta: float) -> None:
    for name, count, total in (("with", true_positives, with_count), ("without", false_positives, without_count)):
        if not 0 <= count <= total or not total:
            raise ValueError(f"{count} of {total} models {name} the record exceed the threshold; check the counts")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; it must be at least 0 and below 1")


def _require(with_scores: NDArray[Any], without_scores: NDArray[Any], least: int) -> None:
    for name, scores in (("with", with_scores), ("without", without_scores)):
        if len(scores) < least:
            raise ValueError(f"there are {len(scores)} scores {name} the record; at least {least} are needed")
        if np.isnan(scores).any():
            raise ValueError(f"scores {name} the record hold NaN; every model needs a score")
