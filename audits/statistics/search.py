"""Bisection to the point where a condition changes, from the conservative side.

scipy's root finders do not say which side they return. Kept separate
from accounting's search, so that a bug there cannot mask what an audit finds.
"""

from __future__ import annotations

from collections.abc import Callable


def largest(holds: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The largest value in [``low``, ``high``] for which ``holds``, at most ``precision`` too small."""
    return _bisect(holds, low, high, precision)[0]


def smallest(holds: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The smallest value in [``low``, ``high``] for which ``holds``, at most ``precision`` too large."""
    return _bisect(lambda x: not holds(x), low, high, precision)[1]


def _bisect(low_side: Callable[[float], bool], low: float, high: float, precision: float) -> tuple[float, float]:
    """Bisect, assuming that the two ends differ without evaluating them; ``precision`` 0 stops at adjacent floats."""
    while high - low > precision and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if low_side(middle) else (low, middle)
    return low, high
