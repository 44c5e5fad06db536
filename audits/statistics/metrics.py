"""Statistics of two samples of scores, members against non-members, each with a valid interval.

A higher score means more member-like. ``alpha`` is the allowed failure probability of a two-sided interval. No curve is
interpolated or replaced by its convex hull.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincinv, ndtri, rel_entr, stdtrit

from audits.statistics.laws import mean_ranks
from audits.statistics.search import largest, smallest

if TYPE_CHECKING:
    from numpy.typing import NDArray

DELONG = "DeLong, logit scale"
DELONG_T = "DeLong, logit scale, t"
PAIRS = "Chernoff over all pairs"
PAIRS_TIED = "Chernoff over all pairs, won and lost"
CLOPPER_PEARSON = "Clopper-Pearson"
RELABELLED = "normal, standard deviation over relabellings"

#: Samples are lopsided if one side has fewer records than this and the other more than this many times as many. Then
#: the interval is exact; a normal one at 0.2 % errs 5 to 12 times in 1000 at 10 against 200, and 4 to 8 times at 10
#: against 30 if the larger side's scores spread a third as far. With more records on the smaller side, the variance of
#: an unequal sample still has few degrees of freedom: a normal interval at 0.2 % errs 4 to 8 times in 1000 at 15 and 20
#: against 200, and 3 to 5 times at 30 against 1000 and at 40 against 400; Student's errs 1 to 2 times.
_FEW, _LOPSIDED = 12, 2
#: If most scores are equal and fewer of a side differ from them than this, its variance is estimated too poorly: a
#: normal interval at 0.2 % errs 19 times in 1000 if 1 % of 118 differ against 3 % of 118.
_DIFFERENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Auc:
    """Area under the ROC curve: P(member scores higher) + P(tie) / 2; ``stderr`` is DeLong's, NaN where undefined."""

    value: float
    stderr: float
    lower: float
    upper: float
    interval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Calling a record a member if its score exceeds ``threshold``: counts, and intervals of the rates.

    ``tpr_lower`` and ``tpr_upper`` are a two-sided interval at this threshold. ``fpr_upper`` is one-sided, and
    ``certified`` says whether it is within the requested rate. ``reason`` is not empty if there are too few non-members
    to resolve that rate; the counts then do not estimate the TPR at it.
    """

    threshold: float
    true_positives: int
    false_positives: int
    tpr: float
    tpr_lower: float
    tpr_upper: float
    fpr_upper: float
    certified: bool
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
    """AUC by mid-ranks with DeLong's interval on the logit scale, in O(n log n) (DeLong 1988; Sun and Xu 2014).

    ``members`` and ``nonmembers`` are one score each, in any order. If DeLong's variance is zero or undefined (complete
    separation, one distinct score, one record), or the samples are lopsided, the interval is by Chernoff's inequality
    (``chernoff``), which assumes only independent records; if nearly all scores are equal, it combines such limits for
    the fractions of pairs won and lost. If one side has more than twice as many records as the other, Student's
    quantile replaces the normal one.

    Members [.9, .8, .7, .6, .55] against [.65, .5, .4, .3, .2] give 0.92, standard error 0.093808, (0.486, 0.993).
    """
    _require_scores(members, nonmembers)
    m, n = len(members), len(nonmembers)
    pooled = mean_ranks(np.concatenate([members, nonmembers]))
    above = (pooled[:m] - mean_ranks(members)) / n  # share of non-members below each member
    below = 1 - (pooled[m:] - mean_ranks(nonmembers)) / m  # share of members above each non-member
    value = float(above.mean())
    stderr = math.nan
    if min(m, n) > 1:
        stderr = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
    # In lopsided samples the smaller side's variance is estimated too poorly for a normal interval.
    if are_lopsided(m, n) or not stderr > 0 or not 0 < value < 1:
        lower, upper = chernoff(value, min(m, n), alpha) if pooled.min() < pooled.max() else (0.0, 1.0)
        return Auc(value=value, stderr=stderr, lower=lower, upper=upper, interval=PAIRS)
    if _nearly_all_tied(members, nonmembers):
        lower, upper = _tied_interval(members, nonmembers, value, alpha)
        return Auc(value=value, stderr=stderr, lower=lower, upper=upper, interval=PAIRS_TIED)
    unequal = max(m, n) > _LOPSIDED * min(m, n)
    quantile = _student(above, below, alpha) if unequal else -float(ndtri(alpha / 2))
    half = quantile * stderr / (value * (1 - value))
    center = math.log(value / (1 - value))
    lower, upper = _sigmoid(center - half), _sigmoid(center + half)
    return Auc(value=value, stderr=stderr, lower=lower, upper=upper, interval=DELONG_T if unequal else DELONG)


def _student(above: NDArray[Any], below: NDArray[Any], alpha: float) -> float:
    """Student's quantile with the degrees of freedom of a sum of two variances (Welch 1947; Satterthwaite 1946)."""
    first, second = (float(side.var(ddof=1)) / len(side) for side in (above, below))
    freedom = (first + second) ** 2 / (first**2 / (len(above) - 1) + second**2 / (len(below) - 1))
    return -float(stdtrit(freedom, alpha / 2))


def are_lopsided(members: int, nonmembers: int) -> bool:
    """Whether one side has very few records and the other many more."""
    few, many = sorted((members, nonmembers))
    return few < _FEW and many > _LOPSIDED * few


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
    threshold = float(np.partition(nonmembers, count - 1 - allowed)[count - 1 - allowed])
    hits, errors = int((members > threshold).sum()), int((nonmembers > threshold).sum())
    lower, upper = clopper_pearson(hits, len(members), alpha)
    fpr_upper = clopper_pearson(errors, count, 2 * alpha)[1]
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
        tpr_lower=lower,
        tpr_upper=upper,
        fpr_upper=fpr_upper,
        certified=fpr_upper <= fpr,
        reason=reason,
    )


def chernoff(share: float, pairs: int, alpha: float) -> tuple[float, float]:
    """Limits of the probability that a member beats a non-member, from the ``share`` of all pairs in which one does.

    The fraction over all pairs is the mean over the ways to pair off each record of the smaller side, so Chernoff's
    inequality for that many independent ``pairs`` applies to it: P[share >= x] <= exp(-pairs KL(x, p)) (Hoeffding 1963,
    section 5). Unlike counts over some pairs, it does not depend on the order of the records.

    ``chernoff(1.0, 10, 0.05)`` is (0.691503, 1), that is 0.025^(1/10) for the lower limit.
    """
    most = math.log(2 / alpha) / pairs

    def excluded(chance: float) -> bool:
        return float(rel_entr(share, chance) + rel_entr(1 - share, 1 - chance)) > most

    lower = largest(excluded, 0.0, share, 0.0) if share > 0 else 0.0
    upper = smallest(excluded, share, 1.0, 0.0) if share < 1 else 1.0
    return lower, upper


def _nearly_all_tied(members: NDArray[Any], nonmembers: NDArray[Any]) -> bool:
    """Whether at least half of all scores are equal, and few of a side differ from these."""
    pooled = np.concatenate([members, nonmembers])
    usual = np.partition(pooled, len(pooled) // 2)[len(pooled) // 2]  # a value of half the scores is the median
    if 2 * np.count_nonzero(pooled == usual) < len(pooled):
        return False
    return min(int(np.count_nonzero(side != usual)) for side in (members, nonmembers)) < _DIFFERENT


def _tied_interval(members: NDArray[Any], nonmembers: NDArray[Any], value: float, alpha: float) -> tuple[float, float]:
    """The AUC is 1/2 plus half of P(won) - P(lost), each of which gets limits at half of ``alpha``."""
    m, n = len(members), len(nonmembers)
    ordered = np.sort(nonmembers)
    won = float(np.searchsorted(ordered, members, "left").sum()) / (m * n)
    lost = max(0.0, won - 2 * value + 1)
    (least_won, most_won), (least_lost, most_lost) = (chernoff(pairs, min(m, n), alpha / 2) for pairs in (won, lost))
    return (1 + least_won - most_lost) / 2, (1 + most_won - least_lost) / 2


def _require_scores(members: NDArray[Any], nonmembers: NDArray[Any]) -> None:
    for name, scores in (("members", members), ("nonmembers", nonmembers)):
        if not len(scores):
            raise ValueError(f"{name} is empty; a comparison needs at least one score on each side")
        if np.isnan(scores).any():
            raise ValueError(f"{name} holds NaN; every record needs a score")


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
