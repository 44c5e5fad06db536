"""The AUC and the true positive rates that kept ranks give, with their intervals, independently of the audit's code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.evidence import Evidence
from verify.answers import number
from verify.audits.terms import RATES
from verify.laws.common import (
    beta_quantile,
    beta_upper_quantile,
    chi_square_quantiles,
    normal_quantile,
    student_quantile,
)
from verify.laws.counts import rank_with_rate

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Relative difference attributed to rounding.
ROUNDING = 1e-9
#: Below these numbers of records on one side, and above these ratios to the other, other intervals are used.
_FEW_ONCE, _FEW = 10, 12
_LOPSIDED_ONCE, _LOPSIDED = 4, 2
#: If half of all scores are equal, this many on each side must differ from them for DeLong's interval.
_DIFFERENT = 10
_DELONG, _PAIRS = "DeLong, logit scale", "Clopper-Pearson over disjoint pairs"
_DELONG_T = "DeLong, logit scale, t"
_CHERNOFF, _TIED = "Chernoff over all pairs", "Chernoff over all pairs, won and lost"
#: The intervals of older audits.
_FORMER = (_DELONG, _DELONG_T, _PAIRS, _CHERNOFF, _TIED)
_ADDED = "gamma, one record added"
#: The least skewness of the gamma distribution.
_LEAST_SKEWNESS = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one entry of evidence that follow from the ranks; None for those that are not compared."""

    estimate: float | None
    lower: float | None = None
    upper: float | None = None
    interval: str | None = None
    samples: tuple[int, int]
    details: Mapping[str, float] = field(default_factory=dict)
    near: float = ROUNDING


def share_below(values: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """The fraction of ``others`` below each of ``values``, with ties counted half."""
    ordered = np.sort(others)
    twice = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return np.asarray(twice / (2 * len(others)), dtype=np.float64)


def won(members: NDArray[Any], others: NDArray[Any]) -> float:
    """The AUC: the fraction of pairs in which the member ranks above the other record, with ties counted half."""
    return float(np.mean(share_below(members, others)))


def auc_with_interval(members: NDArray[Any], others: NDArray[Any], alpha: float, called: str) -> Figures:
    """The AUC with its interval.

    ``called`` is the stated name of the interval; audits before those with an added record used others.
    """
    above, beneath = share_below(members, others), 1 - share_below(others, members)
    value, moments = float(above.mean()), dict[str, float]()
    if called in _FORMER:
        lower, upper, name = _former_limits(members, others, above, beneath, alpha, called)
    else:
        name, lower, upper = _ADDED, 0.0, 1.0
        if np.ptp(np.concatenate([members, others])) > 0:
            lower, below_value = _limit_with_record_added(above, beneath, alpha / 2)
            distance, above_value = _limit_with_record_added(1 - above, 1 - beneath, alpha / 2)
            upper = 1 - distance
            moments = {f"{each}_below": number for each, number in below_value.items()}
            moments |= {f"{each}_above": number for each, number in above_value.items()}
    return Figures(
        estimate=value,
        lower=lower,
        upper=upper,
        interval=name,
        samples=(len(members), len(others)),
        details={"chance": 0.5, **moments},
    )


def added_limit(value: float, sizes: Sequence[int], deviation: float, skewness: float, tail: float) -> float:
    """The lower limit of an AUC ``value`` with one record added, from the moments that its shares then have."""
    kept = value
    for size in sizes:
        added = 1 - size / sum(sizes)
        kept *= 1 - 2 / 3 * added / (size + added)
    freedom = 8 / skewness**2
    beyond = (chi_square_quantiles(tail, freedom)[1] - freedom) / math.sqrt(2 * freedom)
    return max(0.0, kept - beyond * deviation)


def _limit_with_record_added(above: NDArray[Any], beneath: NDArray[Any], tail: float) -> tuple[float, dict[str, float]]:
    """The lower limit for one record more, which wins a third as often as the mean, split by the sizes of the sides.

    With it come the deviation and the skewness, unless it is 0. Moments of weighted sums: a term of weight w adds w
    times its squared and twice its cubed distance to the mean.
    """
    value = float(above.mean())
    if value <= 0:
        return 0.0, {}
    sides, whole = (above, beneath), len(above) + len(beneath)
    second, skew = 0.0, 0.0
    for shares in sides:
        weights = np.append(np.ones(len(shares)), 1 - len(shares) / whole)
        points = np.append(shares, value / 3)
        scaled = (points - float(np.average(points, weights=weights))) / float(weights.sum())
        second += float(weights @ scaled**2)
        skew += 2 * float(weights @ scaled**3)
    moments = {"deviation": math.sqrt(second), "skewness": max(_LEAST_SKEWNESS, -skew / second**1.5)}
    limit = added_limit(value, (len(above), len(beneath)), **moments, tail=tail)
    return limit, moments if limit > 0 else {}


def _former_limits(
    members: NDArray[Any], others: NDArray[Any], above: NDArray[Any], beneath: NDArray[Any], alpha: float, called: str
) -> tuple[float, float, str]:
    """The limits that older audits used, and their name.

    They are DeLong's on the logit scale, or follow from a Chernoff bound if DeLong's does not apply. The oldest ones
    used the normal quantile for all sizes, or from 30 records on, and any number of ties, and disjoint pairs, as many
    as the smaller side has records, instead of Chernoff's inequality.
    """
    m, n, value = len(members), len(others), float(above.mean())
    variance = float(above.var(ddof=1) / m + beneath.var(ddof=1) / n) if min(m, n) > 1 else math.nan
    few = _FEW_ONCE if called == _DELONG else _FEW
    lopsided = max(m, n) > (_LOPSIDED_ONCE if called == _DELONG else _LOPSIDED) * min(m, n)
    if (min(m, n) < few and lopsided) or not variance > 0 or not 0 < value < 1:
        if called == _PAIRS:
            return *_limits_by_disjoint_pairs(members, others, alpha), _PAIRS
        same = len(np.unique(np.concatenate([members, others]))) == 1
        return *((0.0, 1.0) if same else _chernoff_limits(value, min(m, n), alpha)), _CHERNOFF
    if called not in (_DELONG, _DELONG_T) and _is_mostly_tied(members, others):
        return *_limits_with_ties(members, others, alpha), _TIED
    logit = math.log(value / (1 - value))
    name, quantile = _DELONG, float(normal_quantile(alpha / 2))
    if lopsided and called != _DELONG:
        parts = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (above, beneath)]
        freedom = variance**2 / sum(part**2 / free for part, free in parts)
        name, quantile = _DELONG_T, student_quantile(alpha / 2, freedom)
    half = quantile * math.sqrt(variance) / (value * (1 - value))
    lower, upper = (1 / (1 + math.exp(-end)) for end in (logit - half, logit + half))
    return lower, upper, name


def _is_mostly_tied(members: NDArray[Any], others: NDArray[Any]) -> bool:
    """Whether at least half of the scores are equal and fewer than ``_DIFFERENT`` of one side differ from them."""
    scores, counts = np.unique(np.concatenate([members, others]), return_counts=True)
    most = scores[counts.argmax()]
    few = min(int((members != most).sum()), int((others != most).sum())) < _DIFFERENT
    return bool(few and counts.max() >= counts.sum() / 2)


def _limits_with_ties(members: NDArray[Any], others: NDArray[Any], alpha: float) -> tuple[float, float]:
    """The AUC's limits if pairs may be won, lost or tied, with half of alpha for each of the two fractions."""
    count, ordered = len(members) * len(others), np.sort(members)
    wins = float((len(members) - np.searchsorted(ordered, others, "right")).sum()) / count
    losses = float(np.searchsorted(ordered, others, "left").sum()) / count
    won, lost = (_chernoff_limits(share, min(len(members), len(others)), alpha / 2) for share in (wins, losses))
    return 0.5 + (won[0] - lost[1]) / 2, 0.5 + (won[1] - lost[0]) / 2


def _chernoff_limits(share: float, pairs: int, alpha: float) -> tuple[float, float]:
    """The p on either side of ``share`` at which exp(-pairs KL(share, p)) = alpha / 2 (Hoeffding 1963, section 5)."""
    from scipy.optimize import brentq  # imported here because the import takes longer than most verifications

    def missing(p: float) -> float:
        log = share * math.log(p / share) if share > 0 else 0.0
        log += (1 - share) * math.log((1 - p) / (1 - share)) if share < 1 else 0.0
        return pairs * log - math.log(alpha / 2)

    tiny = math.ulp(1.0) / 2
    lower = 0.0 if share <= 0 else _root(brentq, missing, 1e-300, share)
    return lower, 1.0 if share >= 1 else _root(brentq, missing, 1 - tiny, share)


def _root(find: Any, missing: Any, end: float, share: float) -> float:
    """The root of ``missing`` between ``end`` and ``share``, or ``end`` if it is not negative there."""
    return (
        end
        if missing(end) >= 0
        else float(find(missing, end, min(share, 1 - math.ulp(1.0) / 2), xtol=1e-300, rtol=1e-14))
    )


def _limits_by_disjoint_pairs(members: NDArray[Any], others: NDArray[Any], alpha: float) -> tuple[float, float]:
    """Clopper-Pearson limits from pairs of the first records of either side, with ties counted against both limits."""
    pairs = min(len(members), len(others))
    wins, ties = (int(sign(members[:pairs], others[:pairs]).sum()) for sign in (np.greater, np.equal))
    return _binomial(wins, pairs, alpha)[0], _binomial(wins + ties, pairs, alpha)[1]


def largest_statistic(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """The joint test's statistic: the largest of the standardized AUC and the normal quantiles of the rates' counts."""
    from scipy.stats import betabinom

    inside, outside = scores[member], scores[~member]
    m, n = len(inside), len(outside)
    ties = np.unique(scores, return_counts=True)[1].astype(np.float64)
    variance = (m + n + 1 - float((ties**3 - ties).sum()) / ((m + n) * (m + n - 1))) / (12 * m * n)
    statistics = [(won(inside, outside) - 0.5) / math.sqrt(variance) if variance > ROUNDING**2 else 0.0]
    for rate in RATES:
        allowed = math.floor(rate * n + 1e-9)
        if allowed:
            hits = int((inside > np.sort(outside)[n - 1 - allowed]).sum())
            statistics.append(float(normal_quantile(betabinom.sf(hits - 1, m, allowed + 1, n - allowed))))
    return max(statistics)


def true_positive_rate(members: NDArray[Any], others: NDArray[Any], rate: float, alpha: float) -> Figures:
    """The true positive rate at a false positive ``rate``, with its interval and the counts behind it."""
    allowed = math.floor(rate * len(others) + 1e-9)
    threshold = float(np.sort(others)[len(others) - 1 - allowed])
    hits, errors = int((members > threshold).sum()), int((others > threshold).sum())
    bound = _binomial(allowed, len(others), 2 * alpha)[1]
    counts: dict[str, float] = {"true_positives": hits, "false_positives": errors, "fpr_upper": bound}
    samples = len(members), len(others)
    if allowed < 1:
        return Figures(estimate=None, samples=samples, details=counts)
    rank = rank_with_rate(len(others), rate, alpha / 4)
    reached = int((members >= np.sort(others)[::-1][rank]).sum()) if rank < len(others) else len(members)
    counts |= {"upper_rank": rank, "upper_positives": reached}
    lower, upper = _binomial(hits, len(members), alpha)[0], _binomial(reached, len(members), alpha / 2)[1]
    counts["chance"] = _binomial(allowed, len(others), alpha)[1]
    return Figures(estimate=hits / len(members), lower=lower, upper=upper, samples=samples, details=counts)


def _binomial(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """The two-sided Clopper-Pearson interval, by quantiles of the beta distribution."""
    alpha = min(alpha, 1.0)
    lower = beta_quantile(alpha / 2, hits, trials - hits + 1) if hits else 0.0
    return lower, beta_upper_quantile(alpha / 2, hits + 1, trials - hits) if hits < trials else 1.0


def differences(item: Evidence, figures: Figures, source: str) -> Iterator[str]:
    """Yields one sentence for each entry of ``item`` that differs from ``figures``."""
    near = figures.near
    pairs: list[tuple[str, float | None, float | None]] = [("estimate", item.estimate, figures.estimate)]
    if figures.lower is not None:
        pairs += [("lower limit", item.lower, figures.lower), ("upper limit", item.upper, figures.upper)]
    elif figures.estimate is None:
        pairs += [("lower limit", item.lower, None), ("upper limit", item.upper, None)]
    pairs += [(name, item.details.get(name), value) for name, value in figures.details.items()]
    pairs += [
        (f"number of {side}", item.samples.get(side), count)
        for side, count in zip(("members", "nonmembers"), figures.samples, strict=True)
    ]
    for name, stated, recomputed in pairs:
        if not _are_alike(stated, recomputed, near):
            yield f"its {name} is {number(stated)}, but the {source} give {number(recomputed)}"
    if figures.interval is not None and item.interval != figures.interval:
        yield f"its interval is called {item.interval!r}, but these records have one of {figures.interval!r}"


def _are_alike(stated: float | None, recomputed: float | None, near: float) -> bool:
    if stated is None or recomputed is None:
        return stated is recomputed
    return abs(stated - recomputed) <= near * max(1.0, abs(recomputed))
