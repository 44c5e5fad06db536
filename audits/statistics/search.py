"""Where a condition turns, from the side that is safe for the claim: scipy's root finders do not say which they give.

It is not accounting's search, so that a fault there cannot excuse what an audit finds.
"""

from __future__ import annotations

from collections.abc import Callable


def largest(holds: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The top of the range from ``low`` to ``high`` on which ``holds``, at most ``precision`` below it."""
    return _halved(holds, low, high, precision)[0]


def smallest(holds: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The bottom of the range from ``low`` to ``high`` on which ``holds``, at most ``precision`` above it."""
    return _halved(lambda x: not holds(x), low, high, precision)[1]


def _halved(low_side: Callable[[float], bool], low: float, high: float, precision: float) -> tuple[float, float]:
    """The ends are taken to differ without being asked; ``precision`` 0 goes down to neighbouring floats."""
    while high - low > precision and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if low_side(middle) else (low, middle)
    return low, high
