"""Numeric types of options. A value out of range is an error that names the option, before any file is read."""

from __future__ import annotations

from typing import Any

import click

from privctl.domain import ranges
from privctl.domain.errors import CommandError
from privctl.domain.ranges import Range


class Number(click.types.FloatParamType):
    """A click type: a number within a range."""

    def __init__(self, within: Range) -> None:
        self.within = within

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return ``value`` as a float. Raises CommandError where it is out of range."""
        number = float(super().convert(value, param, ctx))
        _require(self.within, param, number)
        return number


class Whole(click.types.IntParamType):
    """A click type: a whole number within a range."""

    def __init__(self, within: Range) -> None:
        self.within = within

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return ``value`` as an int. Raises CommandError where it is out of range."""
        number = int(super().convert(value, param, ctx))
        _require(self.within, param, number)
        return number


def flag(param: click.Parameter | None) -> str:
    """The option's longest name, such as ``--epsilon``, for error messages."""
    return "the number" if param is None else max(param.opts, key=len)


def _require(within: Range, param: click.Parameter | None, number: float) -> None:
    try:
        within.require(flag(param), number)
    except ValueError as error:
        raise CommandError(str(error)) from None


POSITIVE = Number(ranges.POSITIVE)
AMOUNT = Number(ranges.AMOUNT)
CLIP_NORM = Number(ranges.CLIP_NORM)
AMOUNT_OR_ZERO = Number(ranges.AMOUNT_OR_ZERO)
FRACTION = Number(ranges.FRACTION)
BELOW_ONE = Number(ranges.BELOW_ONE)
CHANCE = Number(ranges.CHANCE)
COUNT = Whole(ranges.COUNT)
IN_GROUP = Whole(ranges.IN_GROUP)
COUNT_OR_ZERO = Whole(ranges.COUNT_OR_ZERO)
SEED = Whole(ranges.SEED)
SEED32 = Whole(ranges.SEED32)
