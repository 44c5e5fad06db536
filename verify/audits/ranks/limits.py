"""Whether an interval by moments over relabellings is that of its estimate. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

from privctl.domain.evidence import Evidence
from verify.audits.terms import BASELINES, RELABELLED, WIDENED
from verify.laws.counts import gamma_beyond
from verify.laws.student import student_quantile

#: The intervals by moments over relabellings.
OVER_RELABELLINGS = (RELABELLED, WIDENED)
#: What such an interval follows from, besides its estimate, standard error and confidence.
MOMENTS = ("chance", "center", "deviation", "skewness", "relabellings")
#: The numbers of relabellings: of the fused score; of others at most, at least, and of labels in total.
OF_FUSED, _DRAWN, _LEAST, _LABELS = 1999, 999, 99, 5_000_000
_ROUNDING = 1e-6
#: The least skewness, and steps of bisection.
_LEAST_SKEWNESS, _HALVINGS = 1e-4, 60


def relabellings_of(records: int) -> int:
    """How many relabellings an audit draws of so many records, but for its fused score."""
    return max(_LEAST, min(_DRAWN, _LABELS // max(1, records)))


def wrong_limits(item: Evidence, limits: tuple[float, float, float], least: float) -> str:
    """What is wrong with the ``limits`` of ``item``, its estimate among them; none is below ``least``."""
    low, value, high = limits
    if missing := [name for name in (*MOMENTS, "stderr") if name not in item.details]:
        return f"its {missing[0]} is missing, which its interval follows from"
    deviation, stderr = item.details["deviation"], item.details["stderr"]
    if deviation < 0 or not stderr >= deviation * (1 - _ROUNDING):
        return "its standard error is below its deviation over relabellings"
    if "secrets" not in item.samples:  # of which no record may be compared in some relabellings
        fused = item.quantity == "AUC" and item.method not in BASELINES
        count = OF_FUSED if fused else relabellings_of(sum(item.samples.values()))
        if item.details["relabellings"] != count:
            return "its number of relabellings is not that of an audit of so many records"
    ends = least, 1.0
    if deviation > 0:
        below, above = reaches(item.details, (1 - item.confidence) / 2)
        ends = max(least, value - below * stderr), min(1.0, value + above * stderr)
    fits = math.isclose(low, ends[0], abs_tol=_ROUNDING) and math.isclose(high, ends[1], abs_tol=_ROUNDING)
    return "" if fits else "its interval is not its estimate's and its moments'"


def reaches(details: Mapping[str, float], tail: float) -> tuple[float, float]:
    """How far the limits lie below and above an estimate, in standard errors, by the moments in ``details``.

    A gamma distribution has these moments. As they are uncertain, its skewness is larger by its standard error on
    either side, and its quantiles by the ratio of Student's to the normal one. No limit is closer than a normal one.
    """
    count = int(details["relabellings"])
    if count < 2:
        return math.inf, math.inf
    normal = NormalDist().inv_cdf(1 - tail)
    grown = student_quantile(tail, count - 1) * math.sqrt(count / (count - 1)) / normal
    off, more = (details["center"] - details["chance"]) / details["deviation"], math.sqrt(6 / count)
    return (
        max(grown * normal, grown * _quantile(more + details["skewness"], tail) + off),
        max(grown * normal, grown * _quantile(more - details["skewness"], tail) - off),
    )


def _quantile(skewness: float, tail: float) -> float:
    """What a variable of mean 0, variance 1 and this ``skewness`` exceeds with ``tail``, if it has a gamma law."""
    shape = 4 / max(_LEAST_SKEWNESS, abs(skewness)) ** 2
    root = math.sqrt(shape)
    if skewness < 0:
        return -_root(lambda far: 1 - gamma_beyond(shape, shape + far * root) > tail, -root, 0.0)
    high = 1.0
    while gamma_beyond(shape, shape + high * root) >= tail:  # much farther out, its series would lose all terms
        high *= 2
    return _root(lambda far: gamma_beyond(shape, shape + far * root) < tail, 0.0, high)


def _root(beyond: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``beyond`` begins to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return (low + high) / 2
