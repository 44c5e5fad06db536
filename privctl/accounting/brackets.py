"""The root finders of accounting: every search keeps a bracket, and the caller takes the safe end.

scipy's ``brentq`` and the like return the better end without saying on which side of the root it is. Proofs need the
side, so we have our own searches. ``threshold_bracket`` needs only a condition, ``falling_root`` and
``falling_bracket`` need a value, and ``costly_root`` is for values that take seconds each. For integers, use
``bisect.bisect_left`` with a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def threshold_bracket(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    within: float = 0.0,
) -> tuple[float, float]:
    """A bracket of the point where ``holds`` becomes true: it must be false at ``low`` and true at ``high``.

    Its ends are neighbouring floats, or at most ``within`` apart.
    """
    while high - low > within and (at := low + (high - low) / 2) not in (low, high):
        low, high = (low, at) if holds(at) else (at, high)
    return low, high


def falling_bracket(
    value: Callable[[float], float], low: float, left: float, high: float, *, relative: float = 0.0
) -> tuple[float, float]:
    """The bracket that ``threshold_bracket`` finds for ``value(x) <= 0``, with a quarter to half of the calls.

    A decreasing ``value``, which may be infinite, is ``left`` > 0 at ``low`` and at most 0 at ``high``, where it is not
    evaluated. Regula falsi (Illinois variant) that steps slightly past its estimate, so that both ends converge;
    bisection if the bracket was not halved in three steps.
    """
    right, width, steps, before = -math.inf, high - low, 0, 0.0
    while high - low > relative * high:
        at, near = low + (high - low) / 2, max(relative, 2.0**-50) * high / 4
        if at in (low, high):
            break
        if high - low > width / 2:
            steps += 1
        else:
            width, steps = high - low, 0
        if steps <= 3 and math.isfinite(left - right) and high - low > 4 * near:
            guess = low + (high - low) * (left / (left - right))
            guess += near if guess - low < high - guess else -near
            at = min(max(guess, low + near), high - near)
        height = value(at)
        if height > 0:
            low, left, right = at, height, right / 2 if before > 0 else right
        else:
            high, right, left = at, height, left / 2 if before < 0 else left
        before = height or -1.0
    return low, high


def falling_index(value: Callable[[int], float], low: int, high: int) -> int:
    """The smallest integer in (``low``, ``high``] at which a decreasing ``value``, which may be infinite, is at most 0.

    It is taken to be above 0 at ``low`` and at most 0 at ``high``, and is not evaluated there. Finds what bisection
    finds, with a quarter to half of the calls where the value is smooth. Regula falsi (Illinois variant) that steps
    past its estimate, so that both ends converge; bisection if the bracket was not halved in two steps.
    """
    left, right, width, steps, before = math.inf, -math.inf, high - low, 0, 0.0
    while high - low > 1:
        if high - low > width / 2:
            steps += 1
        else:
            width, steps = high - low, 0
        at = low + (high - low) // 2
        if steps <= 2 and math.isfinite(left - right):
            guess = (high - low) * (left / (left - right))
            past = 1 + (high - low) // 1024
            at = low + math.floor(guess) + (past if guess < (high - low) / 2 else 1 - past)
            at = min(max(at, low + 1), high - 1)
        height = value(at)
        if height > 0:
            low, left, right = at, height, right / 2 if before > 0 else right
        else:
            high, right, left = at, height, left / 2 if before < 0 else left
        before = height or -1.0
    return high


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
    """The smallest x in (``low``, ``high``] at which a decreasing ``value`` is at most 0, within ``close`` (relative).

    ``left`` > 0 and ``right`` <= 0 are the values at the ends, and ``low`` > 0. Regula falsi in the logarithm of x
    (Illinois variant: the value of an end that stays twice is halved). The value at the returned x was evaluated and is
    at most 0. Steps go ``beyond`` / 2 past the estimate, so that both ends converge, and keep half of that distance
    from either end.
    """
    before = 0.0
    while high - low > close * high and right < 0:
        share = left / (left - right) if math.isfinite(left - right) else 0.5
        at = low * (high / low) ** share
        if beyond:
            at = min(max(at * (1 + beyond / 2), low * (1 + beyond / 4)), high * (1 - beyond / 4))
        if not low < at < high:
            at = low + (high - low) / 2
        height = value(at)
        if height > 0:
            low, left, right = at, height, right / 2 if before > 0 else right
        else:
            high, right, left = at, height, left / 2 if before < 0 else left
        before = height
    return high


def costly_root(
    value: Callable[[float], float], start: float, low: float, high: float, *, tolerance: float, stride: float
) -> float:
    """The smallest x with a decreasing ``value(x)`` <= 0, in few calls: at most ``tolerance`` above one with value > 0.

    Secant steps from ``start``, the first of them at most ``stride`` long. The value, which may be infinite, is assumed
    to be above 0 at ``low`` and at most 0 at ``high``, and is not evaluated there.
    """
    x, least, most = start, low, high
    points: list[tuple[float, float]] = []
    for _ in range(200):
        height = value(x)
        points.append((x, height))
        low, high = (x, high) if height > 0 else (low, x)
        if high - low <= tolerance or -1e-15 < height <= 0:
            break
        x = _next_point(points, low, high, stride, tolerance, bracketed=low > least and high < most)
        stride *= 4 if len(points) > 1 else 1
    return high


def _next_point(
    points: list[tuple[float, float]], low: float, high: float, stride: float, tolerance: float, *, bracketed: bool
) -> float:
    """The next point of the secant method, moved slightly past the root so that both ends of the bracket converge."""
    x, value = points[-1]
    guess = math.nan
    if len(points) > 1 and math.isfinite(value):
        x0, value0 = points[-2]
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
