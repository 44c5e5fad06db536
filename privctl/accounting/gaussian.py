"""The Gaussian mechanism, exactly (Balle and Wang 2018, "Improving the Gaussian Mechanism for DP", theorem 8).

With mu = sensitivity / noise standard deviation, the mechanism is (epsilon, delta)-DP iff

    delta >= Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

Example: mu = 1, delta = 1e-6 gives epsilon 4.8865541174622...
"""

from __future__ import annotations

import math
import sys

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtr

from privctl.domain.checks import at_least, fraction, positive
from privctl.domain.guarantee import Adjacency, Assumption, Guarantee, Scope, Status

ACCOUNTANT = "analytic Gaussian (Balle-Wang 2018), exact"

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
#: Beyond this many standard deviations the Mills ratio's closed form overflows and its complement is used.
_FAR = 25.0
_ROOT_TOLERANCE = 1e-14
#: Shifts beyond this have an epsilon (about mu^2 / 2) that floats can no longer hold; no finite bound is reported.
_VACUOUS = 1e150


def log_delta(epsilon: float, mu: float) -> float:
    """Natural logarithm of the smallest delta at ``epsilon`` for shift ``mu``; -inf for mu = 0.

    Since exp(epsilon) phi(b) = phi(a) for a = mu/2 - epsilon/mu and b = a - mu, delta = phi(a) (M(-a) - M(-b)) with
    Mills' ratio M: no cancellation between huge terms, whatever epsilon.
    """
    at_least("epsilon", epsilon, 0)
    at_least("mu", mu, 0)
    if mu == 0:
        return -math.inf
    a = mu / 2 - epsilon / mu
    log_density = -a * a / 2 - _LOG_SQRT_2PI
    second = _mills(mu - a)
    if a > _FAR:
        return float(log_ndtr(a) + math.log1p(-math.exp(log_density) * second / ndtr(a)))
    difference = _mills(-a) - second
    return log_density + math.log(difference) if difference > 0 else -math.inf


def delta_at(epsilon: float, mu: float) -> float:
    """The smallest delta at ``epsilon`` for shift ``mu`` = sensitivity / standard deviation."""
    return math.exp(log_delta(epsilon, mu))


def epsilon_at(delta: float, mu: float) -> float:
    """The smallest epsilon at ``delta`` for shift ``mu``; 0 where even epsilon 0 has no larger delta."""
    fraction("delta", delta)
    target = math.log(delta)
    if log_delta(0.0, mu) <= target:
        return 0.0
    # Privacy loss is N(mu^2/2, mu^2): at this many deviations its tail alone is below delta.
    high = mu * mu / 2 + mu * (2 + math.sqrt(-2 * target))
    return float(brentq(lambda e: log_delta(e, mu) - target, 0.0, high, xtol=_ROOT_TOLERANCE, rtol=_ROOT_TOLERANCE))


def shift_at(epsilon: float, delta: float) -> float:
    """The largest shift mu = sensitivity / standard deviation that is (epsilon, delta)-DP."""
    at_least("epsilon", epsilon, 0)
    fraction("delta", delta)
    target = math.log(delta)
    high = 1.0
    while log_delta(epsilon, high) < target:
        high *= 2
    low = high / 2
    while log_delta(epsilon, low) > target:
        low /= 2
    mu = float(brentq(lambda m: log_delta(epsilon, m) - target, low, high, xtol=1e-300, rtol=_ROOT_TOLERANCE))
    # The root is known to rounding only; step to the safe side of it.
    return mu * (1 - 1e-13)


def noise_multiplier_for(epsilon: float, delta: float) -> float:
    """The smallest noise standard deviation / sensitivity that is (epsilon, delta)-DP.

    Example: epsilon 1, delta 1e-5 gives 3.73063163481594.
    """
    return 1.0 / shift_at(epsilon, delta)


def gaussian_guarantee(
    *,
    name: str,
    sensitivity: float,
    noise_stddev: float,
    delta: float,
    adjacency: Adjacency,
    status: Status,
    assumptions: tuple[Assumption, ...],
    scope: Scope = Scope.THIS_MODEL,
    note: str = "",
) -> Guarantee:
    """What one Gaussian release of standard deviation ``noise_stddev`` gives at L2 ``sensitivity`` (same units)."""
    positive("noise_stddev", noise_stddev)
    mu = sensitivity / noise_stddev
    if mu > _VACUOUS:
        sensitivity, mu = min(sensitivity, sys.float_info.max), math.inf
    return Guarantee(
        name=name,
        epsilon=epsilon_at(delta, mu) if mu <= _VACUOUS else None,
        delta=delta,
        adjacency=adjacency,
        accountant=ACCOUNTANT,
        status=status,
        scope=scope,
        sensitivity=sensitivity,
        noise_multiplier=noise_stddev / sensitivity if sensitivity else None,
        assumptions=assumptions,
        note=note,
    )


def _mills(x: float) -> float:
    """Mills' ratio Phi(-x) / phi(x)."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))
