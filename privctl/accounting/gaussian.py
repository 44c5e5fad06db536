"""The Gaussian mechanism, exactly (Balle and Wang 2018, "Improving the Gaussian Mechanism for DP", theorem 8).

With mu = sensitivity / noise standard deviation, the mechanism is (epsilon, delta)-DP iff

    delta >= Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

Example: mu = 1, delta = 1e-6 gives epsilon 4.8865541174622...
"""

from __future__ import annotations

import math
import sys

from privctl.accounting.brackets import falling_bracket, threshold_bracket
from privctl.domain.checks import at_least, fraction, positive
from privctl.domain.guarantee import Adjacency, Assumption, Guarantee, Scope, Status

ACCOUNTANT = "analytic Gaussian (Balle-Wang 2018), exact"

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
#: Above this argument, Mills' ratio of its negative would soon overflow, so the complement is used.
_FAR = 25.0
#: Unit roundoff times a factor for what the error bounds below leave out (at most 3 in measurements).
_ROUNDING = 8 * 2.0**-53
#: Bound on the relative rounding error of a quotient such as sensitivity / noise.
_QUOTIENT = 4 * 2.0**-53
#: For larger shifts, epsilon (about mu^2 / 2) overflows, and no finite bound is reported.
_VACUOUS = 1e150


def log_delta(epsilon: float, mu: float) -> float:
    """Natural logarithm of the smallest delta at ``epsilon`` for shift ``mu``; -inf for mu = 0.

    Since exp(epsilon) phi(b) = phi(a) for a = mu/2 - epsilon/mu and b = a - mu, delta = phi(a) (M(-a) - M(-b)) with
    Mills' ratio M. This avoids cancellation between huge terms for every epsilon.
    """
    at_least("epsilon", epsilon, 0)
    at_least("mu", mu, 0)
    if mu == 0:
        return -math.inf
    a = mu / 2 - epsilon / mu
    log_density = -a * a / 2 - _LOG_SQRT_2PI
    if a > _FAR:
        return math.log1p(-math.exp(log_density) * (mills(a) + mills(mu - a)))
    difference = mills(-a) - mills(mu - a)
    return log_density + math.log(difference) if difference > 0 else -math.inf


def log_delta_above(epsilon: float, mu: float, errors: int = 1) -> float:
    """As ``log_delta``, but never below the true value: adds bounds for its rounding and for that of a quotient ``mu``.

    With a as in ``log_delta``, rounding a changes the logarithm by (|a| + 1) |da|, and Mills' ratios cancel for small
    ``mu``. If a target is met with ``errors`` = 3, it is met with ``errors`` = 1 at every float within rounding of
    ``mu``.
    """
    mu *= 1 + _QUOTIENT
    estimate = log_delta(epsilon, mu)
    if not math.isfinite(estimate):
        return estimate if mu == 0 else max(estimate, math.log(mu) - _LOG_SQRT_2PI)  # delta at epsilon 0 is below this
    a = mu / 2 - epsilon / mu
    error = (max(0.0, -a) + 2) * (mu / 2 + epsilon / mu) + a * a + abs(estimate) + 4
    if a <= _FAR:
        near, far = mills(-a), mills(mu - a)
        error += (near + far) / (near - far) * (1 + abs(a) + min(mu, 40.0))
    return min(0.0, estimate + errors * _ROUNDING * error)


def delta_at(epsilon: float, mu: float) -> float:
    """The smallest delta at ``epsilon`` for shift ``mu`` = sensitivity / standard deviation."""
    return math.exp(log_delta(epsilon, mu))


def epsilon_at(delta: float, mu: float) -> float:
    """The smallest epsilon at ``delta`` for shift ``mu``, rounded up by about 1e-11 relative in delta.

    0 if the delta of epsilon 0 is at most ``delta``.
    """
    fraction("delta", delta)
    target = _log_below(delta)
    if (above := log_delta_above(0.0, mu) - target) <= 0:
        return 0.0
    # The privacy loss is N(mu^2/2, mu^2); this many standard deviations out, its tail alone is below delta.
    high = (mu * mu / 2 + mu * (2 + math.sqrt(-2 * target))) * (1 + 2 * _QUOTIENT)
    return falling_bracket(lambda epsilon: log_delta_above(epsilon, mu) - target, 0.0, above, high)[1]


def epsilon_floor_at(delta: float, mu: float) -> float:
    """As ``epsilon_at``, but rounded down: at every smaller epsilon, the delta is larger than ``delta``."""
    fraction("delta", delta)
    floor, slack = epsilon_at(delta, mu), 2 * _QUOTIENT
    # Step down in doubling multiples of the rounding error until delta is certainly above the target.
    while floor > 0 and _log_delta_below(floor, mu) < math.log(delta):
        floor, slack = floor * (1 - slack), 2 * slack
    return floor


def shift_at(epsilon: float, delta: float) -> float:
    """The largest shift mu = sensitivity / standard deviation that is (epsilon, delta)-DP, rounded down.

    With a margin: for any shift within rounding of it, ``epsilon_at`` is at most ``epsilon``.
    """
    at_least("epsilon", epsilon, 0)
    fraction("delta", delta)
    target = _log_below(delta)
    high = 1.0
    while log_delta_above(epsilon, high) <= target:
        high *= 2
    return threshold_bracket(lambda mu: log_delta_above(epsilon, mu, 3) > target, 0.0, high)[0] * (1 - 4 * _QUOTIENT)


def noise_multiplier_for(epsilon: float, delta: float) -> float:
    """The smallest noise standard deviation / sensitivity that is (epsilon, delta)-DP, rounded up as ``shift_at``.

    Example: epsilon 1, delta 1e-5 gives 3.73063163481594.
    """
    return 1.0 / shift_at(epsilon, delta)


def _log_below(delta: float) -> float:
    """The logarithm of ``delta``, rounded down."""
    log = math.log(delta)
    return log - 2.0**-51 * abs(log)


def _log_delta_below(epsilon: float, mu: float) -> float:
    """As ``log_delta_above``, but never above the true value; the error bound is the same on this side."""
    estimate = log_delta(epsilon, mu * (1 - _QUOTIENT))
    return estimate - 2 * abs(log_delta_above(epsilon, mu) - estimate)


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
) -> Guarantee:
    """The guarantee of one Gaussian release: ``noise_stddev`` and L2 ``sensitivity`` in the same units."""
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
    )


#: From here on the asymptotic series is accurate to rounding; erfc underflows a little later.
_ASYMPTOTIC = 25.0
_SERIES_TERMS = 9
#: Dekker's splitting constant: the head of the argument has an exact square.
_SPLIT = 2.0**27 + 1


def mills(x: float) -> float:
    """Mills' ratio Phi(-x) / phi(x) for x above -37; raises OverflowError below.

    Not scipy's, whose import takes 0.15 s in commands that otherwise start in 0.2 s.

    Example: mills(0) = sqrt(pi / 2).
    """
    return math.sqrt(math.pi / 2) * _erfcx(x / math.sqrt(2))


def _erfcx(z: float) -> float:
    """exp(z^2) erfc(z)."""
    if z > _ASYMPTOTIC:
        term = total = 1.0
        for k in range(1, _SERIES_TERMS):
            term *= -(2 * k - 1) / (2 * z * z)
            total += term
        return total / (z * math.sqrt(math.pi))
    # z = head + tail with an exact square of head (Dekker); otherwise the rounding error of z^2 would be amplified.
    head = _SPLIT * z - (_SPLIT * z - z)
    tail = z - head
    return math.exp(head * head) * math.exp(tail * (head + z)) * math.erfc(z)
