"""Statistics of two samples of scores, members against non-members, each with a valid interval.

A higher score means more member-like. ``alpha`` is the allowed failure probability of a two-sided interval. No curve
is interpolated or replaced by its convex hull.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from audits.statistics.laws import mean_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

DELONG = "DeLong, logit scale"
DELONG_T = "DeLong, logit scale, t"
PAIRS = "Clopper-Pearson over disjoint pairs"
CLOPPER_PEARSON = "Clopper-Pearson"
RELABELLED = "normal, standard deviation over relabellings"

#: Samples are lopsided if one side has fewer records than this and the other more than this many times as many. For so
#: few the interval is exact; a normal one at 0.2 % errs 5 to 12 times in 1000 at 10 against 200.
_FEW, _LOPSIDED = 12, 4
#: Below this many, a lopsided sample's variance is known with so few degrees of freedom that they count: at 15 and 20
#: against 200 a normal interval at 0.2 % errs 4 to 8 times in 1000, Student's 1 to 2 times.
_SOME = 30


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
    """Calling a record a member where its score exceeds ``threshold``: counts, and intervals of the rates.

    ``tpr_lower`` and ``tpr_upper`` are a two-sided interval at this threshold. ``fpr_upper`` is one-sided, and
    ``certified`` says whether it is within the requested rate. ``reason`` is not empty if there are too few
    non-members to resolve that rate; the counts are then no estimate of the TPR at it.
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

    ``clopper_pearson(90, 100)`` is (0.823777, 0.950995).
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes} of {trials} trials; it must lie between 0 and trials")
    lower = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, alpha / 2))
    upper = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - alpha / 2))
    return lower, upper


def auc(members: NDArray[Any], nonmembers: NDArray[Any], alpha: float = 0.05) -> Auc:
    """AUC by mid-ranks with DeLong's interval on the logit scale, in O(n log n) (DeLong 1988; Sun and Xu 2014).

    ``members`` and ``nonmembers`` are one score each, in any order. Where DeLong's variance is zero or undefined
    (complete separation, one distinct score, one record), or the samples are lopsided, the interval is the exact one
    over disjoint pairs; with 12 to 29 records against many more, Student's quantile takes the normal one's place.
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
        lower, upper = _pairs_interval(members, nonmembers, alpha)
        return Auc(value=value, stderr=stderr, lower=lower, upper=upper, interval=PAIRS)
    few = min(m, n) < _SOME and max(m, n) > _LOPSIDED * min(m, n)
    quantile = _student(above, below, alpha) if few else -float(ndtri(alpha / 2))
    half = quantile * stderr / (value * (1 - value))
    center = math.log(value / (1 - value))
    lower, upper = _sigmoid(center - half), _sigmoid(center + half)
    return Auc(value=value, stderr=stderr, lower=lower, upper=upper, interval=DELONG_T if few else DELONG)


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
    """The ROC curve's corners as [<= points, 2]: false and true positive rate, from (0, 0) to (1, 1).

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
    push the false positive rate above ``fpr``. The example of ``auc`` at 20 %: threshold .5, 5 and 1 positives.
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


def _pairs_interval(members: NDArray[Any], nonmembers: NDArray[Any], alpha: float) -> tuple[float, float]:
    """Exact bounds from independent pairs: a tie counts against the bound on either side."""
    pairs = min(len(members), len(nonmembers))
    won = int((members[:pairs] > nonmembers[:pairs]).sum())
    tied = int((members[:pairs] == nonmembers[:pairs]).sum())
    return clopper_pearson(won, pairs, alpha)[0], clopper_pearson(won + tied, pairs, alpha)[1]


def _require_scores(members: NDArray[Any], nonmembers: NDArray[Any]) -> None:
    for name, scores in (("members", members), ("nonmembers", nonmembers)):
        if not len(scores):
            raise ValueError(f"{name} is empty; a comparison needs at least one score on each side")
        if np.isnan(scores).any():
            raise ValueError(f"{name} holds NaN; every record needs a score")


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
