"""Range checks shared by the domain's constructors: each raises ValueError naming argument, value and expectation."""

from __future__ import annotations

import math


def positive(name: str, value: float) -> None:
    """``value`` is finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; it must be a finite number above 0")


def at_least(name: str, value: float, least: float) -> None:
    """``value`` is finite and not below ``least``."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least {least}")


def fraction(name: str, value: float, *, zero: bool = False) -> None:
    """``value`` lies strictly between 0 and 1, or may be 0 when ``zero``."""
    if not (0 < value < 1 or (zero and value == 0)):
        low = "0 or more" if zero else "above 0"
        raise ValueError(f"{name} is {value!r}; it must be {low} and below 1")
