"""Range checks shared by the domain's constructors: each raises ValueError naming argument, value and expectation."""

from __future__ import annotations

import math
from collections.abc import Container


def positive(name: str, value: float) -> None:
    """``value`` is finite and above zero."""
    if not (_finite(value) and value > 0):
        raise ValueError(f"{name} is {shown(value)}; it must be a finite number above 0")


def at_least(name: str, value: float, least: float) -> None:
    """``value`` is finite and not below ``least``."""
    if not (_finite(value) and value >= least):
        raise ValueError(f"{name} is {shown(value)}; it must be a finite number of at least {least}")


def shown(value: float) -> str:
    """The value as it stands, cut where it is absurdly long."""
    text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


def fraction(name: str, value: float, *, zero: bool = False) -> None:
    """``value`` lies strictly between 0 and 1, or may be 0 when ``zero``."""
    if not (0 < value < 1 or (zero and value == 0)):
        low = "0 or more" if zero else "above 0"
        raise ValueError(f"{name} is {shown(value)}; it must be {low} and below 1")


def probability(name: str, value: float) -> None:
    """``value`` lies between 0 and 1, both included."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {shown(value)}; it must lie between 0 and 1")


def count(name: str, value: int) -> None:
    """``value`` is a whole number from 1 to a million million, beyond which arithmetic on it is no longer exact."""
    if not 1 <= value <= 10**12:
        raise ValueError(f"{name} is {shown(value)}; it must lie between 1 and 1e12")


def flagged(message: str, names: Container[str]) -> str:
    """A check's message with the argument that it begins with, if among ``names``, written as an option.

    Example: ``batch_size is 0`` becomes ``--batch-size is 0``.
    """
    name, space, rest = message.partition(" ")
    return f"--{name.replace('_', '-')}{space}{rest}" if name in names else message
