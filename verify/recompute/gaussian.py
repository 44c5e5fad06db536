"""The Gaussian mechanism in ball arithmetic: delta is certified from both sides, despite cancellation.

With mu = sensitivity / standard deviation the smallest delta at epsilon is
Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018, theorem 8). Arb evaluates it with a
proved radius; bits are added until the radius is far below the value.
"""

from __future__ import annotations

import math

from flint import arb, ctx

from verify.losses.bound_pair import BoundPair

_BITS = (128, 512, 2048)
#: Beyond this shift floats cannot hold an epsilon.
_VACUOUS = 1e150


def delta_at(epsilon: float, mu: float) -> BoundPair:
    """The smallest delta at ``epsilon`` >= 0 for shift ``mu`` >= 0. Example: (1, 1) is 0.12693673750664395."""
    if mu == 0:
        return BoundPair(0.0, 0.0)
    if mu > _VACUOUS:
        return BoundPair(0.0, 1.0)
    before, ball = ctx.prec, arb(0)
    try:
        for bits in _BITS:
            ctx.prec = bits
            ball = _delta(arb(epsilon), arb(mu))
            if ball.is_finite() and ball.rel_accuracy_bits() > 50:
                break
        return _floats(ball)
    finally:
        ctx.prec = before


def epsilon_at(delta: float, mu: float) -> BoundPair:
    """The smallest epsilon at ``delta``, to about 1e-12. Example: delta 1e-6, mu 1 give 4.8865541174622119964."""
    if delta_at(0.0, mu).upper <= delta:
        return BoundPair(0.0, 0.0)
    if mu > _VACUOUS:
        return BoundPair(0.0, math.inf)
    # The loss is N(mu^2/2, mu^2); this many standard deviations above the mean, its tail is below delta.
    low, high = 0.0, mu * mu / 2 + mu * (2 + math.sqrt(-2 * math.log(delta)))
    safe = high
    while high - low > 1e-13 * high:
        middle = low + (high - low) / 2
        if middle in (low, high):
            break
        middle_delta = delta_at(middle, mu)
        if middle_delta.upper <= delta:
            high = safe = middle
        elif middle_delta.lower > delta:
            low = middle
        else:
            break
    return BoundPair(low, safe)


def multiplier_at(epsilon: float, delta: float) -> BoundPair:
    """The least noise multiplier that is (epsilon, delta)-DP. Example: (1, 1e-5) gives 3.7306316."""
    low, high = 1e-9, 1.0
    while delta_at(epsilon, 1 / high).upper > delta:
        high *= 2
    while high - low > 1e-13 * high:
        middle = low + (high - low) / 2
        middle_delta = delta_at(epsilon, 1 / middle)
        if middle_delta.upper <= delta:
            high = middle
        elif middle_delta.lower > delta:
            low = middle
        else:
            break
    return BoundPair(low, high)


def advantage(mu: float) -> BoundPair:
    """The largest true minus false positive rate, 2 Phi(mu/2) - 1."""
    return delta_at(0.0, mu)


def power(rate: float, mu: float) -> BoundPair:
    """The largest true positive rate at false positive ``rate``: Phi(Phi^-1(rate) + mu), by bisection for Phi^-1."""
    if rate in (0, 1):
        return BoundPair(rate, rate)
    low, high = -40.0, 40.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if float(_phi(arb(middle)).mid()) < rate else (low, middle)
    ends = [_floats(_phi(arb(quantile) + arb(mu))) for quantile in (low - 1e-12, high + 1e-12)]
    return BoundPair(ends[0].lower, min(1.0, ends[1].upper))


def _delta(epsilon: arb, mu: arb) -> arb:
    return _phi(mu / 2 - epsilon / mu) - epsilon.exp() * _phi(-mu / 2 - epsilon / mu)


def _phi(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2


def _floats(ball: arb) -> BoundPair:
    """Floats that enclose the ball, clipped to [0, 1]."""
    if not ball.is_finite():
        return BoundPair(0.0, 1.0)
    low, high = (math.nextafter(float(end), limit) for end, limit in ((ball.lower(), -1.0), (ball.upper(), 2.0)))
    return BoundPair(min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0))
