"""The Gaussian mechanism, exactly (Balle and Wang 2018, theorem 8; Dong, Roth and Su 2019, corollary 3.3).

With shift mu = sensitivity / noise standard deviation, delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), and
k mechanisms compose to one whose squared shift is the sum of theirs. Shifts are passed squared, so that they are
rational.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import DIGITS, Interval, Rational, ball, below, bracket, enclose, enclose_all
from verify.prove.enclosures.functions import normal_cdf

if TYPE_CHECKING:
    from flint import arb


#: The least delta accepted: enclosures do not resolve numbers much below it.
LEAST_DELTA = Fraction(1, 10**90)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEvent:
    """The optimal event for one epsilon: S = {(y - w) / sigma > ``threshold``}, with w the mean under P.

    The mean under P' is w - mu sigma. ``p`` encloses P(S), ``q`` P'(S), ``growth`` e^epsilon, ``weighted`` the product
    of the last two, and ``delta`` P(S) - e^epsilon P'(S), which no other event exceeds (Neyman-Pearson).
    """

    threshold: Interval
    p: Interval
    q: Interval
    growth: Interval
    weighted: Interval
    delta: Interval


def event(epsilon: Rational, squared_shift: Rational) -> GaussianEvent:
    """The optimal event for ``epsilon``. Raises ValueError unless the shift is above 0.

    Example: epsilon 1 and mu 1 give delta 0.1269367375066439458.
    """
    if squared_shift <= 0:
        raise ValueError(f"squared_shift is {float(squared_shift)!r}; it must be above 0")

    def numbers() -> tuple[arb, ...]:
        shift, eps = ball(squared_shift).sqrt(), ball(epsilon)
        inner, outer = shift / 2 - eps / shift, -shift / 2 - eps / shift
        p, q, growth = normal_cdf(inner), normal_cdf(outer), eps.exp()
        return -inner, p, q, growth, growth * q, p - growth * q

    threshold, p, q, growth, weighted, needed = enclose_all(numbers)
    return GaussianEvent(threshold=threshold, p=p, q=q, growth=growth, weighted=weighted, delta=needed)


def delta(epsilon: Rational, squared_shift: Rational) -> Interval:
    """The least delta at ``epsilon``; 0 if the shift is 0."""
    if squared_shift == 0:
        return Interval(low=Fraction(0), high=Fraction(0))

    def needed() -> arb:
        shift, eps = ball(squared_shift).sqrt(), ball(epsilon)
        return normal_cdf(shift / 2 - eps / shift) - eps.exp() * normal_cdf(-shift / 2 - eps / shift)

    return enclose(needed)


def epsilon(delta_: Rational, squared_shift: Rational, digits: int = DIGITS) -> Interval:
    """The least epsilon at ``delta_``, bracketed to ``digits`` digits by evaluating delta at both ends.

    Raises ValueError for a delta below 1e-90, which enclosures do not resolve.
    Example: delta 1e-6 and mu 1/2 give 2.254084650219740935.
    """
    _require_resolvable(delta_)
    if squared_shift == 0 or delta(0, squared_shift).high <= delta_:
        return Interval(low=Fraction(0), high=Fraction(0))
    high = Fraction(1)
    while delta(high, squared_shift).high > delta_:
        high *= 2
    return bracket(lambda middle: below(delta(middle, squared_shift), delta_), Fraction(0), high, digits)


def minimal_multiplier(epsilon_: Rational, delta_: Rational) -> Interval:
    """The least noise multiplier for (``epsilon_``, ``delta_``)-DP, bracketed by bisection.

    The upper end is certainly sufficient and the lower end certainly insufficient. Example: (1, 1e-6) needs
    4.2246788893.
    """
    _require_resolvable(delta_)
    low, high = Fraction(0), Fraction(1)
    while delta(epsilon_, 1 / high**2).high > delta_:
        low, high = high, high * 2
    return bracket(lambda sigma: below(delta(epsilon_, 1 / sigma**2), delta_), low, high)


def mean_loss(squared_shift: Rational) -> Fraction:
    """KL(P || P') = mu^2 / 2, the mean of the privacy loss; its variance is twice that."""
    return Fraction(squared_shift) / 2


def flipped_bit_information(squared_shift: Rational) -> Interval:
    """An upper bound, log(1 + mu^2/4) / 2, on the nats that an output reveals about which neighbour it came from.

    It is the capacity of a Gaussian channel with inputs of power mu^2/4 (Cover and Thomas, theorem 9.1.1).
    """
    return enclose(lambda: (ball(squared_shift) / 4).log1p() / 2)


def _require_resolvable(delta_: Rational) -> None:
    if delta_ < LEAST_DELTA:
        raise ValueError(f"delta is {float(delta_)!r}; it must be at least 1e-90")
