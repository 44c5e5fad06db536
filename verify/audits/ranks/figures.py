"""What kept ranks say of an attack: the area and the rates, with their limits, stated without the audit's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from verify.audits.ranks.relabelled import RATES
from verify.laws.common import beta_quantile, beta_upper_quantile, normal_quantile, student_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What rounding explains.
ROUNDING = 1e-9
#: With fewer records than this on one side, and this many times as many on the other, pairs of them are counted.
_FEW_ONCE, _FEW = 10, 12
_LOPSIDED_ONCE, _LOPSIDED = 4, 2
#: Where half of all scores are one, this many of each side have to differ from it.
_DIFFERENT = 10
_DELONG, _PAIRS = "DeLong, logit scale", "Clopper-Pearson over disjoint pairs"
_DELONG_T = "DeLong, logit scale, t"
_CHERNOFF, _TIED = "Chernoff over all pairs", "Chernoff over all pairs, won and lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One entry of evidence as it follows from the ranks; None where it is not looked at."""

    estimate: float | None
    lower: float | None = None
    upper: float | None = None
    interval: str | None = None
    samples: tuple[int, int]
    details: Mapping[str, float] = field(default_factory=dict)
    near: float = ROUNDING


def _below(values: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """The share of ``others`` below each of ``values``, equal ones counted half."""
    ordered = np.sort(others)
    twice = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return np.asarray(twice / (2 * len(others)), dtype=np.float64)


def won(members: NDArray[Any], others: NDArray[Any]) -> float:
    """The share of pairs of a member and another record in which the member ranks higher, equal ones counted half."""
    return float(np.mean(_below(members, others)))


def area(members: NDArray[Any], others: NDArray[Any], alpha: float, called: str) -> Figures:
    """The AUC with DeLong's interval on the logit scale, or Chernoff's where there is no such variance.

    Older audits took the normal quantile for every size, or from 30 records on, and however many scores were equal, and
    counted as many pairs as the smaller side has records in place of Chernoff's inequality (``called`` so).
    """
    m, n = len(members), len(others)
    above, beneath = _below(members, others), 1 - _below(others, members)
    value = float(above.mean())
    variance = float(above.var(ddof=1) / m + beneath.var(ddof=1) / n) if min(m, n) > 1 else math.nan
    few = _FEW_ONCE if called == _DELONG else _FEW
    lopsided = max(m, n) > (_LOPSIDED_ONCE if called == _DELONG else _LOPSIDED) * min(m, n)
    if (min(m, n) < few and lopsided) or not variance > 0 or not 0 < value < 1:
        same = len(np.unique(np.concatenate([members, others]))) == 1
        lower, upper = (0.0, 1.0) if same else _share_of_pairs(value, min(m, n), alpha)
        name = _CHERNOFF
        if called == _PAIRS:
            (lower, upper), name = _of_disjoint_pairs(members, others, alpha), _PAIRS
        return Figures(estimate=value, lower=lower, upper=upper, interval=name, samples=(m, n), details={"chance": 0.5})
    if called not in (_DELONG, _DELONG_T) and _is_one_score(members, others):
        return _of_unequal_pairs(members, others, value, alpha)
    logit = math.log(value / (1 - value))
    name, quantile = _DELONG, float(normal_quantile(alpha / 2))
    if lopsided and called != _DELONG:
        parts = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (above, beneath)]
        freedom = variance**2 / sum(part**2 / free for part, free in parts)
        name, quantile = _DELONG_T, student_quantile(alpha / 2, freedom)
    half = quantile * math.sqrt(variance) / (value * (1 - value))
    ends = [1 / (1 + math.exp(-end)) for end in (logit - half, logit + half)]
    return Figures(estimate=value, lower=ends[0], upper=ends[1], interval=name, samples=(m, n), details={"chance": 0.5})


def _is_one_score(members: NDArray[Any], others: NDArray[Any]) -> bool:
    """Whether half of the scores are the same one, and hardly any of a side is another."""
    scores, counts = np.unique(np.concatenate([members, others]), return_counts=True)
    most = scores[counts.argmax()]
    few = min(int((members != most).sum()), int((others != most).sum())) < _DIFFERENT
    return bool(few and counts.max() >= counts.sum() / 2)


def _of_unequal_pairs(members: NDArray[Any], others: NDArray[Any], value: float, alpha: float) -> Figures:
    """The AUC's limits where a pair is won, lost or neither: half of alpha for each of the two shares."""
    count, ordered = len(members) * len(others), np.sort(members)
    wins = float((len(members) - np.searchsorted(ordered, others, "right")).sum()) / count
    losses = float(np.searchsorted(ordered, others, "left").sum()) / count
    won, lost = (_share_of_pairs(share, min(len(members), len(others)), alpha / 2) for share in (wins, losses))
    return Figures(
        estimate=value,
        lower=0.5 + (won[0] - lost[1]) / 2,
        upper=0.5 + (won[1] - lost[0]) / 2,
        interval=_TIED,
        samples=(len(members), len(others)),
        details={"chance": 0.5},
    )


def _share_of_pairs(share: float, pairs: int, alpha: float) -> tuple[float, float]:
    """The chances p at which exp(-pairs KL(share, p)) is alpha / 2, on either side (Hoeffding 1963, section 5)."""
    from scipy.optimize import brentq  # here, as importing it takes longer than most verifications

    def missing(p: float) -> float:
        log = share * math.log(p / share) if share > 0 else 0.0
        log += (1 - share) * math.log((1 - p) / (1 - share)) if share < 1 else 0.0
        return pairs * log - math.log(alpha / 2)

    tiny = math.ulp(1.0) / 2
    lower = 0.0 if share <= 0 else _root(brentq, missing, 1e-300, share)
    return lower, 1.0 if share >= 1 else _root(brentq, missing, 1 - tiny, share)


def _root(find: Any, missing: Any, end: float, share: float) -> float:
    """Between an ``end`` and ``share``, where nothing is missing; the end where nothing is even there."""
    return (
        end
        if missing(end) >= 0
        else float(find(missing, end, min(share, 1 - math.ulp(1.0) / 2), xtol=1e-300, rtol=1e-14))
    )


def _of_disjoint_pairs(members: NDArray[Any], others: NDArray[Any], alpha: float) -> tuple[float, float]:
    """Of the first records of either side, equal scores count against both limits."""
    pairs = min(len(members), len(others))
    wins, ties = (int(sign(members[:pairs], others[:pairs]).sum()) for sign in (np.greater, np.equal))
    return _binomial(wins, pairs, alpha)[0], _binomial(wins + ties, pairs, alpha)[1]


def largest_statistic(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """In deviations under relabelling: the AUC's, and of each rate's count the normal quantile as unlikely as it."""
    from scipy.stats import betabinom

    inside, outside = scores[member], scores[~member]
    m, n = len(inside), len(outside)
    ties = np.unique(scores, return_counts=True)[1].astype(np.float64)
    variance = (m + n + 1 - float((ties**3 - ties).sum()) / ((m + n) * (m + n - 1))) / (12 * m * n)
    found = [(won(inside, outside) - 0.5) / math.sqrt(variance) if variance > ROUNDING**2 else 0.0]
    for rate in RATES:
        allowed = math.floor(rate * n + 1e-9)
        if allowed:
            hits = int((inside > np.sort(outside)[n - 1 - allowed]).sum())
            found.append(float(normal_quantile(betabinom.sf(hits - 1, m, allowed + 1, n - allowed))))
    return max(found)


def rate_beyond(members: NDArray[Any], others: NDArray[Any], rate: float, alpha: float) -> Figures:
    """The members above all but so many of the others."""
    allowed = math.floor(rate * len(others) + 1e-9)
    threshold = float(np.sort(others)[len(others) - 1 - allowed])
    hits, errors = int((members > threshold).sum()), int((others > threshold).sum())
    bound = _binomial(errors, len(others), 2 * alpha)[1]
    counts: dict[str, float] = {"true_positives": hits, "false_positives": errors, "fpr_upper": bound}
    samples = len(members), len(others)
    if allowed < 1:
        return Figures(estimate=None, samples=samples, details=counts)
    lower, upper = _binomial(hits, len(members), alpha)
    counts["chance"] = _binomial(allowed, len(others), alpha)[1]
    return Figures(estimate=hits / len(members), lower=lower, upper=upper, samples=samples, details=counts)


def _binomial(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """Clopper and Pearson's two-sided interval, by quantiles of the beta law."""
    alpha = min(alpha, 1.0)
    lower = beta_quantile(alpha / 2, hits, trials - hits + 1) if hits else 0.0
    return lower, beta_upper_quantile(alpha / 2, hits + 1, trials - hits) if hits < trials else 1.0
