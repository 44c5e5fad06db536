"""Statistics of two samples of scores, members against non-members, each with a valid interval.

A higher score means more member-like. ``alpha`` is the allowed failure probability of a two-sided interval. No curve is
interpolated or replaced by its convex hull.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincinv, gammainccinv

from audits.statistics.laws import binomial_quantile, mean_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

ONE_ADDED = "gamma, one record added"
CLOPPER_PEARSON = "Clopper-Pearson"

#: What the record added for a limit scores, as a share of the AUC. A smaller share makes intervals wider; with 1/2, a
#: limit at 0.1 % errs several times as often as it should with 13 members against 200 others.
_SHARE = 1 / 3
#: A skewness closer to 0 counts as this, so that the shape of the gamma distribution stays finite.
_LEAST_SKEWNESS = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Auc:
    """Area under the ROC curve: P(member scores higher) + P(tie) / 2; ``stderr`` is DeLong's, NaN where undefined.

    ``moments`` are what the limits follow from besides the numbers of records: ``deviation_below``, ``skewness_below``,
    ``deviation_above`` and ``skewness_above``; those of a limit of 0 or 1 are absent.
    """

    value: float
    stderr: float
    lower: float
    upper: float
    interval: str
    moments: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Calling a record a member if its score exceeds ``threshold``: counts, and intervals of the rates.

    ``tpr_lower`` is a limit of the TPR at this threshold. ``tpr_upper`` is one at every threshold with at most the
    requested rate: with probability alpha / 4 the threshold of ``upper_rank`` has a smaller one, and of the
    ``upper_positives`` members that reach it, Clopper and Pearson's limit errs as often. ``fpr_upper`` is a limit of
    the false positive rate, by the rank of the threshold: with the errors instead, it would be wrong up to twice as
    often for tied scores. ``reason`` is not empty if there are too few non-members to resolve the requested rate; the
    counts then do not estimate the TPR at it.
    """

    threshold: float
    true_positives: int
    false_positives: int
    tpr: float
    tpr_lower: float
    tpr_upper: float
    upper_rank: int
    upper_positives: int
    fpr_upper: float
    reason: str


def clopper_pearson(successes: int, trials: int, alpha: float = 0.05) -> tuple[float, float]:
    """The exact two-sided interval of a binomial probability (Clopper and Pearson 1934).

    ``clopper_pearson(90, 100)`` is (0.823777, 0.950995). Raises ValueError for an impossible count.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes} of {trials} trials; it must lie between 0 and trials")
    lower = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, alpha / 2))
    upper = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - alpha / 2))
    return lower, upper


def auc(members: NDArray[Any], nonmembers: NDArray[Any], alpha: float = 0.05) -> Auc:
    """AUC by mid-ranks, with an interval that also holds for few records and near 0 and 1, in O(n log n).

    ``members`` and ``nonmembers`` are one score each, in any order. The standard error is DeLong's (DeLong 1988; Sun
    and Xu 2014), and NaN with one record on a side. ``_lower_limit`` has the interval; if all scores are equal, it is 0
    to 1.

    Members [.9, .8, .7, .6, .55] against [.65, .5, .4, .3, .2] give 0.92, standard error 0.093808, (0.503, 1).
    """
    _require_scores(members, nonmembers)
    m, n = len(members), len(nonmembers)
    pooled = mean_ranks(np.concatenate([members, nonmembers]))
    above = (pooled[:m] - mean_ranks(members)) / n  # share of non-members below each member
    below = 1 - (pooled[m:] - mean_ranks(nonmembers)) / m  # share of members above each non-member
    value = float(above.mean())
    stderr = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n) if min(m, n) > 1 else math.nan
    limits, moments = [0.0, 0.0], dict[str, float]()
    if pooled.min() < pooled.max():
        sides = (("below", value, above, below), ("above", 1 - value, 1 - above, 1 - below))
        for i, (side, share, of_members, of_others) in enumerate(sides):
            if share > 0:
                limits[i], deviation, skewness = _lower_limit(share, of_members, of_others, alpha / 2)
                if limits[i] > 0:
                    moments |= {f"deviation_{side}": deviation, f"skewness_{side}": skewness}
    return Auc(value=value, stderr=stderr, lower=limits[0], upper=1 - limits[1], interval=ONE_ADDED, moments=moments)


def _lower_limit(value: float, above: NDArray[Any], below: NDArray[Any], tail: float) -> tuple[float, float, float]:
    """A lower limit of the AUC that errs with probability ``tail``, approximately; its deviation and skewness.

    ``above`` and ``below`` are the shares of the other side that each record beats, with mean ``value``. Few records
    may all miss a rare kind of low score, so the variance that they show is too small. Therefore one more record is
    added, which scores ``_SHARE`` of the AUC; it counts for either side in proportion to the other's size, since the
    smaller side misses more. If all weights are independent gamma variables with the counts as means (a Bayesian
    bootstrap, Rubin 1981), the AUC has the variance and the skewness computed here, to first order. The limit is the
    quantile of a gamma distribution with these moments (Pearson's type III).
    """
    sides = [
        (len(side), float(((side - value) ** 2).sum()), float(((side - value) ** 3).sum())) for side in (above, below)
    ]
    return lower_limit(value, sides, tail)


def lower_limit(value: float, sides: Sequence[tuple[int, float, float]], tail: float) -> tuple[float, float, float]:
    """A lower limit of the AUC ``value`` that errs with probability ``tail``, approximately; deviation and skewness.

    For each of both ``sides``, its number of records, and the sums of the squared and the cubed distances of its shares
    from ``value``. See ``_lower_limit``.
    """
    centre, variance, third = value, 0.0, 0.0
    for (size, squares, cubes), (other, *_) in zip(sides, reversed(sides), strict=True):
        added = other / (size + other)
        total = size + added
        down = (1 - _SHARE) * value * added / total
        far = (1 - _SHARE) * value - down
        centre *= 1 - down / value
        variance += (squares + size * down**2 + added * far**2) / total**2
        third += 2 * (cubes + 3 * down * squares + size * down**3 - added * far**3) / total**3
    # A skewness to the other side would make the limit closer than a normal quantile. That errs 19 times in 1000, at
    # 99.8 %, if scores are equal except for 3 % of 118 against 1 % of 118.
    skewness = max(_LEAST_SKEWNESS, -third / (variance * math.sqrt(variance)))
    shape = 4 / skewness**2
    reach = (float(gammainccinv(shape, tail)) - shape) / math.sqrt(shape)
    deviation = math.sqrt(variance)
    return max(0.0, centre - reach * deviation), deviation, skewness


def roc(members: NDArray[Any], nonmembers: NDArray[Any], points: int = 512) -> NDArray[np.float64]:
    """The corners of the ROC curve, [<= points, 2]: false and true positive rate, from (0, 0) to (1, 1).

    Tied scores are one step along both axes. If there are more corners than ``points``, the subset kept is densest at
    low false positive rates.
    """
    _require_scores(members, nonmembers)
    pooled = np.concatenate([members, nonmembers])
    order = np.argsort(-pooled, kind="stable")
    last = np.append(np.flatnonzero(np.diff(pooled[order])), len(pooled) - 1)
    inside = np.cumsum(order < len(members))[last]
    rates = np.stack([(last + 1 - inside) / len(nonmembers), inside / len(members)], axis=1)
    corners = np.concatenate([[[0.0, 0.0]], rates])
    if len(corners) > points:
        shown = np.unique(np.geomspace(1, len(corners), points).astype(np.int64)) - 1
        corners = corners[np.union1d(shown, [len(corners) - 1])]
    return np.asarray(corners)


def tpr_at_fpr(members: NDArray[Any], nonmembers: NDArray[Any], fpr: float, alpha: float = 0.05) -> OperatingPoint:
    """The true positive rate at a false positive rate of at most ``fpr``, without interpolation.

    The threshold is the (k+1)-th largest non-member score, k = floor(fpr * n); a member must exceed it, so ties never
    raise the false positive rate above ``fpr``. The example of ``auc`` at 20 % gives threshold .5, 5 true and 1 false
    positives.
    """
    _require_scores(members, nonmembers)
    count = len(nonmembers)
    allowed = math.floor(fpr * count + 1e-9)  # 0.29 * 100 is 28.999999999999996
    threshold = _largest(nonmembers, allowed)
    hits, errors = int((members > threshold).sum()), int((nonmembers > threshold).sum())
    rank = binomial_quantile(1 - alpha / 4, count, fpr)
    reached = int((members >= _largest(nonmembers, rank)).sum()) if rank < count else len(members)
    reason = ""
    if not fpr:
        reason = "no number of non-members resolves a false positive rate of 0"
    elif allowed < 1:
        reason = (
            f"a false positive rate of {fpr:g} needs at least {math.ceil(1 / fpr - 1e-9)} non-members; here are {count}"
        )
    return OperatingPoint(
        threshold=threshold,
        true_positives=hits,
        false_positives=errors,
        tpr=hits / len(members),
        tpr_lower=clopper_pearson(hits, len(members), alpha)[0],
        tpr_upper=clopper_pearson(reached, len(members), alpha / 2)[1],
        upper_rank=rank,
        upper_positives=reached,
        fpr_upper=clopper_pearson(allowed, count, 2 * alpha)[1],
        reason=reason,
    )


def _largest(scores: NDArray[Any], rank: int) -> float:
    """The (``rank`` + 1)-th largest of ``scores``."""
    place = len(scores) - 1 - rank
    return float(np.partition(scores, place)[place])


def _require_scores(members: NDArray[Any], nonmembers: NDArray[Any]) -> None:
    for name, scores in (("members", members), ("nonmembers", nonmembers)):
        if not len(scores):
            raise ValueError(f"{name} is empty; a comparison needs at least one score on each side")
        if np.isnan(scores).any():
            raise ValueError(f"{name} holds NaN; every record needs a score")
