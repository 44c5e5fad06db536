"""Elementary functions: as balls for use in formulas, and as enclosures of single numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import Interval, Rational, ball, enclose

if TYPE_CHECKING:
    from flint import arb


def normal_cdf(x: arb) -> arb:
    """Phi(x) = erfc(-x / sqrt 2) / 2, without cancellation in either tail."""
    from flint import arb

    return (-x / arb(2).sqrt()).erfc() / 2


def exp(x: Rational) -> Interval:
    """e^x."""
    return enclose(lambda: ball(x).exp())


def log(x: Rational) -> Interval:
    """The natural logarithm. Raises ValueError unless ``x`` is above 0."""
    if x <= 0:
        raise ValueError(f"x is {float(x)!r}; a logarithm needs a number above 0")
    return enclose(lambda: ball(x).log())
