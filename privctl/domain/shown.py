"""Formatting of numbers in guarantees: rounding never makes a bound look better than it is."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context

#: Significant digits that are shown at least, and that distinguish any two floats.
_FEWEST, _ALL = 6, 17


def upward(value: float, digits: int = 6) -> str:
    """``value`` in at most ``digits`` significant digits, rounded up: for epsilon, delta and attackers' success rates.

    Example: 6.541042e-06 becomes 6.54105e-06; 1e-05 stays 1e-05.
    """
    return _digits_only(value, digits, ROUND_CEILING)


def downward(value: float, digits: int = 6) -> str:
    """As ``upward``, but rounded down: for lower bounds and what an attack achieved."""
    return _digits_only(value, digits, ROUND_FLOOR)


def apart(*values: float) -> tuple[str, ...]:
    """``values`` in the fewest digits, at least six, in which different values look different."""
    for count in range(_FEWEST, _ALL):
        shown = tuple(f"{value:.{count}g}" for value in values)
        if len(set(shown)) == len(set(values)):
            return shown
    return tuple(f"{value:.{_ALL}g}" for value in values)


def counted(count: int, noun: str, many: str = "") -> str:
    """``count`` and ``noun``, in the plural where needed (``many``, or with an s): "1 tensor", "2 tensors"."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def _digits_only(value: float, digits: int, rounding: str) -> str:
    # Round the shortest decimal of this float: 1e-05 is a little more than that in binary and would be rounded up.
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))):.{digits}g}"
