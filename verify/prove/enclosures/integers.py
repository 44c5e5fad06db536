"""Integer-valued noise on counts: the optimal event, exactly.

The likelihood ratios of both distributions increase with the count, so the optimal event is a count of at least some
number (Neyman-Pearson).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import Rational, ball, enclose
from verify.prove.enclosures.maxima import DistinguishingEvent

if TYPE_CHECKING:
    from flint import arb

#: At this many standard deviations beyond the start of a sum, terms are below e^-1250 of the total.
_FAR = 50


def discrete_gaussian(stddev: Rational, sensitivity: int, epsilon: Rational) -> DistinguishingEvent:
    """The event for noise with probabilities proportional to e^(-y^2 / (2 stddev^2)) (Canonne et al. 2020)."""
    variance = Fraction(stddev) ** 2
    # The loss of y is s (2 y - s) / (2 variance).
    least = math.floor(Fraction(epsilon) * variance / sensitivity + Fraction(sensitivity, 2)) + 1

    def term(y: int) -> arb:
        return (-ball(Fraction(y * y) / (2 * variance))).exp()

    def at_least(y: int) -> arb:
        return _tail(term, y, Fraction(stddev)) / (1 + 2 * _tail(term, 1, Fraction(stddev)))

    return _event(at_least, least, sensitivity)


def discrete_laplace(decay: Rational, sensitivity: int, epsilon: Rational) -> DistinguishingEvent:
    """The event for noise with probabilities proportional to e^(-decay |y|) (Ghosh et al. 2012)."""
    # The loss of y is decay (2 y - s) between 0 and s.
    least = math.floor((Fraction(epsilon) / Fraction(decay) + sensitivity) / 2) + 1

    def at_least(y: int) -> arb:
        if y < 1:
            return 1 - at_least(1 - y)
        return (-ball(decay) * y).exp() / (1 + (-ball(decay)).exp())

    return _event(at_least, min(least, sensitivity), sensitivity)


def _event(at_least: Callable[[int], arb], least: int, sensitivity: int) -> DistinguishingEvent:
    return DistinguishingEvent(
        p=enclose(lambda: at_least(least - sensitivity)),
        q=enclose(lambda: at_least(least)),
        text=f"S: the noisy count is {least} or more, of a count of {sensitivity} under P and of 0 under P'",
    )


def _tail(term: Callable[[int], arb], first: int, stddev: Fraction) -> arb:
    """The sum of the terms from ``first`` on, with a bound on the truncated rest."""
    from flint import arb

    end = max(first, 0) + math.ceil(_FAR * stddev)
    total = sum((term(y) for y in range(first, end)), arb(0))
    # Each further term is less than half of the previous one.
    return total + arb(0, 2 * term(end).upper())
