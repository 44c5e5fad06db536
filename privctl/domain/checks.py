"""Range checks for the domain's constructors: each raises ValueError with the argument, its value and the range."""

from __future__ import annotations

import math
from collections.abc import Container


def positive(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is finite and above zero."""
    if not (_is_finite(value) and value > 0):
        raise ValueError(f"{name} is {shown(value)}; it must be a finite number above 0")


def at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError unless ``value`` is finite and at least ``least``."""
    if not (_is_finite(value) and value >= least):
        raise ValueError(f"{name} is {shown(value)}; it must be a finite number of at least {least}")


def shown(value: float) -> str:
    """The value as text, truncated if it is absurdly long."""
    text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


def fraction(name: str, value: float, *, zero: bool = False) -> None:
    """Raise ValueError unless ``value`` lies strictly between 0 and 1, or is 0 and ``zero`` allows it."""
    if not (0 < value < 1 or (zero and value == 0)):
        low = "0 or more" if zero else "above 0"
        raise ValueError(f"{name} is {shown(value)}; it must be {low} and below 1")


def probability(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {shown(value)}; it must lie between 0 and 1")


def count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` lies in [1, 1e12]; beyond that, arithmetic on it is no longer exact."""
    if not 1 <= value <= 10**12:
        raise ValueError(f"{name} is {shown(value)}; it must lie between 1 and 1e12")


def flagged(message: str, names: Container[str]) -> str:
    """A check's message with the argument it begins with written as an option, if the argument is among ``names``.

    Example: ``batch_size is 0`` becomes ``--batch-size is 0``.
    """
    name, space, rest = message.partition(" ")
    return f"--{name.replace('_', '-')}{space}{rest}" if name in names else message
