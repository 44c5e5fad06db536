"""Events about the largest of several independent Gaussians, which reveal how a record's batches were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import Interval, Rational, ball, enclose
from verify.prove.enclosures.functions import normal_cdf

if TYPE_CHECKING:
    from flint import arb

#: Means, each with the number of Gaussians that have it.
Means = Sequence[tuple[Rational, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinguishingEvent:
    """An event S with P(S) in ``p`` and P'(S) in ``q``, described by ``text``."""

    p: Interval
    q: Interval
    text: str


def any_above(cut: Rational, stddev: Rational, present: Means, absent: Means) -> DistinguishingEvent:
    """The event that some value is above ``cut``; the means are ``present`` under P and ``absent`` under P'."""
    return DistinguishingEvent(
        p=enclose(lambda: 1 - _all_below(cut, stddev, present)),
        q=enclose(lambda: 1 - _all_below(cut, stddev, absent)),
        text=f"S: one of the values, of standard deviation {Fraction(stddev)}, is above {Fraction(cut)}",
    )


def all_below(cut: Rational, stddev: Rational, present: Means, absent: Means) -> DistinguishingEvent:
    """The event that no value is above ``cut``."""
    return DistinguishingEvent(
        p=enclose(lambda: _all_below(cut, stddev, present)),
        q=enclose(lambda: _all_below(cut, stddev, absent)),
        text=f"S: each of the values, of standard deviation {Fraction(stddev)}, is below {Fraction(cut)}",
    )


def _all_below(cut: Rational, stddev: Rational, means: Means) -> arb:
    from flint import arb

    chance = arb(1)
    for mean, count in means:
        chance *= normal_cdf((ball(cut) - ball(mean)) / ball(stddev)) ** count
    return chance
