"""What kept ranks say of an attack: the area and the rates, with their limits, stated without the audit's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from verify.laws import beta_quantile, beta_upper_quantile, normal_quantile, student_quantile
from verify.relabelled import RATES

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What rounding explains.
ROUNDING = 1e-9
#: With fewer records than this on one side, and this many times as many on the other, pairs of them are counted.
_FEW_ONCE, _FEW, _SOME, _LOPSIDED = 10, 12, 30, 4
_DELONG, _PAIRS = "DeLong, logit scale", "Clopper-Pearson over disjoint pairs"
_DELONG_T = "DeLong, logit scale, t"


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
    """The AUC with DeLong's interval on the logit scale, or that of pairs where there is no such variance.

    Older audits took the normal quantile for every size (``called`` so), and pairs for fewer than 10 records only.
    """
    m, n = len(members), len(others)
    above, beneath = _below(members, others), 1 - _below(others, members)
    value = float(above.mean())
    variance = float(above.var(ddof=1) / m + beneath.var(ddof=1) / n) if min(m, n) > 1 else math.nan
    few = _FEW_ONCE if called == _DELONG else _FEW
    lopsided = max(m, n) > _LOPSIDED * min(m, n)
    if (min(m, n) < few and lopsided) or not variance > 0 or not 0 < value < 1:
        pairs = min(m, n)
        won, tied = (int(sign(members[:pairs], others[:pairs]).sum()) for sign in (np.greater, np.equal))
        lower, upper = _binomial(won, pairs, alpha)[0], _binomial(won + tied, pairs, alpha)[1]
        return Figures(
            estimate=value, lower=lower, upper=upper, interval=_PAIRS, samples=(m, n), details={"chance": 0.5}
        )
    logit = math.log(value / (1 - value))
    name, quantile = _DELONG, float(normal_quantile(alpha / 2))
    if lopsided and min(m, n) < _SOME and called != _DELONG:
        parts = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (above, beneath)]
        freedom = variance**2 / sum(part**2 / free for part, free in parts)
        name, quantile = _DELONG_T, student_quantile(alpha / 2, freedom)
    half = quantile * math.sqrt(variance) / (value * (1 - value))
    ends = [1 / (1 + math.exp(-end)) for end in (logit - half, logit + half)]
    return Figures(estimate=value, lower=ends[0], upper=ends[1], interval=name, samples=(m, n), details={"chance": 0.5})


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
