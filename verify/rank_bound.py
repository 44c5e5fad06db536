"""Lower bounds of rank tests, computed again: is the stated bound the parameter whose p-value is the test's level?

Of ``ranked`` models, ``rank`` score beyond a threshold, and ``beyond`` of the ``counted`` others do. The rate F at
which the first kind scores beyond it has the density of Beta(rank + 1, ranked - rank), the count of the others is at
most binomial with rate T(F). Simpson's rule over the log-odds of F, with tails summed term by term; the audit
integrates over quantiles instead. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

from privctl.domain.evidence import Evidence

METHOD = "rank test"
_COUNTS = ("rank", "ranked", "beyond", "counted", "share")
#: Half of the panels of Simpson's rule, in standard deviations, and how many.
_REACH, _PANELS = 12.0, 600
#: Relative error of a p-value that is put down to rounding; the rule itself errs by at most a tenth of this.
_ROUNDING = 5e-3
#: The work grows with the square root of the counts.
_MOST = 10_000_000
_NORMAL = NormalDist()


def fault(item: Evidence) -> str:
    """What is wrong with a lower bound of a rank test; empty for none, and for other evidence."""
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
    curve = _curve(item)
    if curve is None:
        return "it bounds nothing that is known here"
    found = p_value(rank, ranked, beyond, counted, curve(item.lower))
    if item.lower > 0:
        fits = math.isclose(found, level, rel_tol=_ROUNDING)
    else:
        fits = item.lower == 0 and found >= level * (1 - _ROUNDING)
    return "" if fits else f"at its bound of {item.lower:.6g} the test's p-value is {found:.4g}, and not {level:.4g}"


def _curve(item: Evidence) -> Callable[[float], Callable[[float], float]] | None:
    """From the bounded parameter to T."""
    delta = item.details.get("delta")
    if item.quantity.startswith("epsilon lower bound") and delta is not None:
        return lambda epsilon: lambda rate: _approximate(epsilon, delta, rate)
    if item.quantity.startswith("lower bound on mu"):
        return lambda mu: lambda rate: _NORMAL.cdf(_NORMAL.inv_cdf(rate) + mu) if 0 < rate < 1 else rate
    return None


def _approximate(epsilon: float, delta: float, rate: float) -> float:
    """The highest power of a test of this level under (epsilon, delta)-DP, from both of its inequalities."""
    power = min(1.0, math.exp(epsilon) * rate + delta)
    missed = math.exp(-epsilon) * max(0.0, 1 - rate - delta)
    return min(power, 1 - missed)


def p_value(rank: int, ranked: int, beyond: int, counted: int, curve: Callable[[float], float]) -> float:
    """The mean of P(Binomial(counted, curve(F)) >= beyond) over F of Beta(rank + 1, ranked - rank)."""
    a, b = rank + 1, ranked - rank
    # The log-odds of a beta variable are close to normal with these moments.
    middle, spread = math.log(a / b), math.sqrt(1 / a + 1 / b)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    step = 2 * _REACH * spread / _PANELS
    total = mass = 0.0
    for i in range(_PANELS + 1):
        odds = middle - _REACH * spread + i * step
        rate = 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0
        log_density = -a * _softplus(-odds) - b * _softplus(odds) - log_beta
        weight = math.exp(log_density) * (1 if i in (0, _PANELS) else 4 if i % 2 else 2)
        mass += weight
        if weight > 1e-18:
            total += weight * at_least(beyond, counted, curve(rate))
    return total / mass


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def at_least(least: int, total: int, chance: float) -> float:
    """P(Binomial(total, chance) >= least), summed from the term at the cut away from the mean."""
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
