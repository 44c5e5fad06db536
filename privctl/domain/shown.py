"""Numbers of guarantees as people read them: what is cut off never makes a bound look better than it is."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context

#: Digits that tell any two floats apart.
_ALL = 17


def upward(value: float, digits: int = 6) -> str:
    """``value`` in at most ``digits`` significant digits, rounded up: for epsilon, delta and an attacker's chances.

    Example: 6.541042e-06 is 6.54105e-06; 1e-05 stays 1e-05.
    """
    return _cut(value, digits, ROUND_CEILING)


def downward(value: float, digits: int = 6) -> str:
    """As ``upward``, rounded down: for floors and what an attack reached."""
    return _cut(value, digits, ROUND_FLOOR)


def apart(*values: float, digits: int = 6) -> tuple[str, ...]:
    """``values`` in as few digits, ``digits`` or more, as tell all that differ from each other."""
    for count in range(digits, _ALL):
        shown = tuple(f"{value:.{count}g}" for value in values)
        if len(set(shown)) == len(set(values)):
            return shown
    return tuple(f"{value:.{_ALL}g}" for value in values)


def counted(count: int, noun: str, many: str = "") -> str:
    """``count`` of ``noun``, whose plural is ``many`` or ends in s: "1 tensor", "2 tensors"."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def _cut(value: float, digits: int, rounding: str) -> str:
    # The shortest decimal that is this float, or 1e-05, which is a little more than that in binary, would be raised.
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))):.{digits}g}"
