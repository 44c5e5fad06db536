"""The one root finder of accounting: every search keeps a bracket, and the caller takes the end that is safe.

scipy's ``brentq`` and its kin return the better end without saying on which side of the root it lies; here the side is
part of a proof, so that the searches are our own. ``turning`` needs a condition alone, ``falling_root`` a value, and
``costly_root`` is for values that take seconds each. Among whole numbers, use ``bisect.bisect_left`` with a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def turning(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    within: float = 0.0,
    relative: float = 0.0,
    start: float | None = None,
    stride: float = math.inf,
) -> tuple[float, float]:
    """The ends between which ``holds`` turns true: it must not hold at ``low`` and must at ``high``.

    They are neighbouring floats, or at most ``within`` or ``relative * high`` apart. From ``start``, where there is
    one, the search strides out, ``stride`` at first and then ever further, until both sides are known; then it halves.
    """
    at = low + (high - low) / 2 if start is None else start
    while high - low > max(within, relative * high) and at not in (low, high):
        met = holds(at)
        low, high = (low, at) if met else (at, high)
        at, stride = at + (-stride if met else stride), 2 * stride
        if not low < at < high or high - low < 2 * stride:
            at = low + (high - low) / 2
    return low, high


def falling_root(
    value: Callable[[float], float],
    low: float,
    left: float,
    high: float,
    right: float,
    *,
    close: float,
    beyond: float = 0.0,
) -> float:
    """The least of 0 < ``low`` < x <= ``high`` at which a falling ``value`` is 0 or less, to ``close`` relative.

    ``left`` > 0 and ``right`` <= 0 are the values at the ends. Regula falsi over the logarithm of x (Illinois: the side
    that stays is halved). What is returned was met. Steps go ``beyond`` / 2 past the estimate, so that both ends close
    in on the root, and keep half of that from either end.
    """
    while high - low > close * high and right < 0:
        share = left / (left - right) if math.isfinite(left - right) else 0.5
        at = low * (high / low) ** share
        if beyond:
            at = min(max(at * (1 + beyond / 2), low * (1 + beyond / 4)), high * (1 - beyond / 4))
        if not low < at < high:
            at = low + (high - low) / 2
        found = value(at)
        if found > 0:
            low, left, right = at, found, right / 2
        else:
            high, right, left = at, found, left / 2
    return high


def costly_root(
    value: Callable[[float], float], start: float, low: float, high: float, *, tolerance: float, stride: float
) -> float:
    """The least x with ``value(x)`` <= 0, which falls, in few calls: at most ``tolerance`` above one that is not met.

    Secant steps from ``start``, the first of them no longer than ``stride``. The value is taken to be above 0 at
    ``low`` and not at ``high`` without being asked for there; it may be infinite.
    """
    x, least, most = start, low, high
    seen: list[tuple[float, float]] = []
    for _ in range(200):
        found = value(x)
        seen.append((x, found))
        low, high = (x, high) if found > 0 else (low, x)
        if high - low <= tolerance or -1e-15 < found <= 0:
            break
        x = _next(seen, low, high, stride, tolerance, bracketed=low > least and high < most)
        stride *= 4 if len(seen) > 1 else 1
    return high


def _next(
    seen: list[tuple[float, float]], low: float, high: float, stride: float, tolerance: float, *, bracketed: bool
) -> float:
    """The secant's point moved a little to the far side, so that the bracket closes from both ends."""
    x, value = seen[-1]
    guess = math.nan
    if len(seen) > 1 and math.isfinite(value):
        x0, value0 = seen[-2]
        if math.isfinite(value0) and value0 != value:
            guess = x - value * (x - x0) / (value - value0)
            guess += math.copysign(0.3 * tolerance, value)
    elif math.isfinite(value):
        guess = x + max(-stride, min(stride, 0.5 * value)) + math.copysign(0.3 * tolerance, value)
    if low < guess < high and (bracketed or abs(guess - x) < 4):
        return guess
    if bracketed:
        return (low + high) / 2
    return min(x + stride, (x + high) / 2) if value > 0 else max(x - stride, (x + low) / 2)
