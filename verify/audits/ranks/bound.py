"""Checks lower bounds from rank tests: the p-value at the stated bound must equal the test's level.

Of ``ranked`` models, ``rank`` score beyond a threshold, and so do ``beyond`` of the ``counted`` others. The rate F at
which the first kind scores beyond it has a Beta(rank + 1, ranked - rank) distribution, and the count of the others is
stochastically at most binomial with rate T(F). Integrated by Simpson's rule over the log-odds of F, with tails summed
term by term; the audit integrates over quantiles instead. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

from privctl.domain.evidence import Evidence

METHOD = "rank test"
_COUNTS = ("rank", "ranked", "beyond", "counted", "share")
#: Half the range of integration in standard deviations, the number of panels, and half the least number in one part.
_REACH, _PANELS, _FEWEST = 12.0, 400, 8
#: Extra end points of integration around a bend, where the count of the others changes abruptly, in log-odds.
_BESIDE = (0.0, *(sign * 10.0**-k for k in range(1, 6) for sign in (-1, 1)))
#: Relative error of a p-value that is attributed to rounding; the quadrature errs by at most a tenth of this.
ROUNDING = 5e-3
#: The work grows with the square root of the counts.
_MOST = 10_000_000
_OVERFLOW = 700.0
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """``most`` gives the highest true positive rate at a false positive rate; its slope jumps at ``bends``."""

    most: Callable[[float], float]
    bends: tuple[float, ...] = ()


def fault(item: Evidence) -> str:
    """What is wrong with a lower bound from a rank test; "" if nothing is, and for other evidence."""
    if item.method != METHOD or item.lower is None:
        return ""
    missing = [name for name in _COUNTS if name not in item.details]
    if missing:
        return f"its {missing[0]} is missing, without which the bound cannot be computed again"
    rank, ranked, beyond, counted = (int(item.details[name]) for name in _COUNTS[:4])
    if not (0 <= rank < ranked <= _MOST and 0 <= beyond <= counted <= _MOST):
        return f"it counts {beyond} of {counted} beyond rank {rank} of {ranked}, which cannot be"
    if sorted((ranked, counted)) != sorted(item.samples.values()):
        return "its test is not of the models that it was made from"
    level = (1 - item.confidence) * item.details["share"]
    curve = curve_of(item)
    if curve is None:
        return "it bounds nothing that is known here"
    recomputed = p_value(rank, ranked, beyond, counted, curve(item.lower))
    if item.lower > 0:
        fits = math.isclose(recomputed, level, rel_tol=ROUNDING)
    else:
        fits = item.lower == 0 and recomputed >= level * (1 - ROUNDING)
    return (
        "" if fits else f"at its bound of {item.lower:.6g} the test's p-value is {recomputed:.4g}, and not {level:.4g}"
    )


def curve_of(item: Evidence) -> Callable[[float], PowerCurve] | None:
    """The map from the bounded parameter to the power curve T; None if the quantity is unknown."""
    delta = item.details.get("delta")
    if item.quantity.startswith("epsilon lower bound") and delta is not None:
        return lambda epsilon: approximate(epsilon, delta)
    return gaussian if item.quantity.startswith("lower bound on mu") else None


def approximate(epsilon: float, delta: float) -> PowerCurve:
    """The highest power of a test of each level under (epsilon, delta)-DP, from both of its inequalities."""
    factor = math.exp(min(epsilon, _OVERFLOW))

    def most(rate: float) -> float:
        return min(1.0, factor * rate + delta, 1 - max(0.0, 1 - rate - delta) / factor)

    return PowerCurve(most=most, bends=((1 - delta) / (1 + factor), 1 - delta))


def gaussian(mu: float) -> PowerCurve:
    """The highest power of a test of each level between two normal distributions ``mu`` standard deviations apart."""
    return PowerCurve(most=lambda rate: _NORMAL.cdf(_NORMAL.inv_cdf(rate) + mu) if 0 < rate < 1 else rate)


def p_value(rank: int, ranked: int, beyond: int, counted: int, curve: PowerCurve) -> float:
    """The probability that ``beyond`` or more of the ``counted`` lie beyond the threshold if ``curve`` is the true one.

    ``curve`` is symmetric, so either side may be the one whose rate is integrated over. The side whose rate varies less
    is chosen, so that the other's count changes slowly over the range of integration.
    """
    if beyond <= 0:
        return 1.0
    a, b = rank + 1, ranked - rank
    if 1 / (counted - beyond + 1) + 1 / beyond < 1 / a + 1 / b:
        a, b, beyond, counted = counted - beyond + 1, beyond, b, ranked
    return mean_tail(a, b, beyond, counted, curve)


def mean_tail(a: int, b: int, beyond: int, counted: int, curve: PowerCurve) -> float:
    """The mean of P(Binomial(``counted``, ``curve.most(F)``) >= ``beyond``) over F distributed as Beta(a, b)."""
    # The log-odds of a beta variable are close to normal with these moments.
    middle, reach = math.log(a / b), _REACH * math.sqrt(1 / a + 1 / b)
    bends = (math.log(at) - math.log1p(-at) for at in curve.bends if 0 < at < 1)
    inside = [at + beside for at in bends for beside in _BESIDE]
    ends = sorted({middle - reach, middle + reach, *(at for at in inside if abs(at - middle) < reach)})
    total = mass = 0.0
    for low, high in pairwise(ends):
        panels = 2 * max(_FEWEST, math.ceil(_PANELS * (high - low) / (4 * reach)))
        step = (high - low) / panels
        for i in range(panels + 1):
            odds = low + i * step
            weight = step * _density(odds, a, b) * (1 if i in (0, panels) else 4 if i % 2 else 2)
            mass += weight
            if weight > 1e-18:
                rate = 1 / (1 + math.exp(-odds)) if odds > -_OVERFLOW else 0.0
                total += weight * at_least(beyond, counted, curve.most(rate))
    return total / mass


def _density(odds: float, a: int, b: int) -> float:
    """The density of the log-odds of a Beta(a, b) variable."""
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(-a * _softplus(-odds) - b * _softplus(odds) - log_beta)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def at_least(least: int, total: int, chance: float) -> float:
    """P(Binomial(total, chance) >= least), summed from the cut away from the mean."""
    if least <= 0 or chance >= 1:
        return 1.0
    if chance <= 0 or least > total:
        return 0.0
    upper = least > total * chance
    k = least if upper else least - 1
    log = math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
    term = math.exp(log + k * math.log(chance) + (total - k) * math.log1p(-chance))
    found, odds = 0.0, chance / (1 - chance)
    while term > 1e-18 * found or found == 0 < term:
        found += term
        term *= (total - k) / (k + 1) * odds if upper else k / ((total - k + 1) * odds)
        k += 1 if upper else -1
    return found if upper else 1 - found
