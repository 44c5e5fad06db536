"""Composition of k (epsilon, delta)-DP releases: DP-Weights' printed formula, theorems, and the exact worst case."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import DIGITS, Interval, Rational, ball, below, bracket, enclose, enclose_all

if TYPE_CHECKING:
    from flint import arb


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRelease:
    """``count`` adaptive releases from the same data, each (``epsilon``, ``delta``)-DP."""

    epsilon: Fraction
    delta: Fraction
    count: int

    @property
    def total_delta(self) -> Fraction:
        """K delta + delta, the total stated by [DP-Weights]."""
        return (self.count + 1) * self.delta

    @property
    def basic(self) -> Fraction:
        """K epsilon, by basic composition, which holds at k delta."""
        return self.count * self.epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEvent:
    """The event S that at most ``most_flips`` of the answers are flipped, if each is true with odds e^epsilon.

    ``p`` encloses P(S), ``q`` P'(S), and ``delta`` the least total delta at the requested epsilon.
    """

    most_flips: int
    p: Interval
    q: Interval
    delta: Interval


def as_printed(releases: RepeatedRelease) -> Interval:
    """Epsilon sqrt(2 k ln(1/delta)), as in DP-Weights. Not a bound, since k epsilon (e^epsilon - 1) is missing."""
    return enclose(lambda: _deviation(releases))


def advanced(releases: RepeatedRelease) -> Interval:
    """Epsilon of the advanced composition theorem (Dwork, Rothblum and Vadhan 2010), at ``total_delta``."""
    eps = releases.epsilon
    return enclose(lambda: _deviation(releases) + releases.count * ball(eps) * ball(eps).expm1())


def advanced_mean(releases: RepeatedRelease) -> Interval:
    """Advanced composition with the exact mean of the loss, k epsilon tanh(epsilon / 2), at ``total_delta``."""
    eps = releases.epsilon
    return enclose(lambda: _deviation(releases) + releases.count * ball(eps) * (ball(eps) / 2).tanh())


def worst_case(releases: RepeatedRelease, epsilon: Rational) -> ResponseEvent:
    """The least total delta at ``epsilon`` that holds for all such releases (Kairouz, Oh and Viswanath 2015).

    In the worst case, a release discloses everything with probability delta, and otherwise answers one bit truthfully
    with odds e^epsilon. Then delta is 1 - (1 - delta)^k (1 - P(S) + e^epsilon' P'(S)).
    """
    k, eps = releases.count, releases.epsilon
    # The loss of l flips is (k - 2 l) eps, and S is the set of l whose loss exceeds epsilon.
    most = int(-(-(k - Fraction(epsilon) / eps) // 2)) - 1
    most = min(max(most, -1), k)

    def numbers() -> tuple[arb, ...]:
        from flint import arb, fmpz

        odds = ball(eps).exp()
        term_p, term_q = (odds / (1 + odds)) ** k, (1 / (1 + odds)) ** k
        p, q = arb(0), arb(0)
        for flips in range(most + 1):
            p, q = p + term_p, q + term_q
            factor = arb(fmpz(k - flips)) / (flips + 1)
            term_p, term_q = term_p * factor / odds, term_q * factor * odds
        total = 1 - (1 - ball(releases.delta)) ** k * (1 - p + ball(epsilon).exp() * q)
        return p, q, total

    p, q, total = enclose_all(numbers)
    return ResponseEvent(most_flips=most, p=p, q=q, delta=total)


def worst_case_epsilon(releases: RepeatedRelease, total_delta: Rational, digits: int = DIGITS) -> Interval:
    """The least epsilon at ``total_delta`` that holds for all such releases.

    Raises ValueError if ``total_delta`` is less than the releases' own deltas compose to.
    Example: 1000 of (1, 1e-8) at 1.001e-5 give 613.5312994522207.
    """
    high = releases.basic
    if below(worst_case(releases, high).delta, total_delta) is not True:
        raise ValueError(f"total_delta is {float(total_delta)!r}; the releases' own deltas add up to more")
    if below(worst_case(releases, 0).delta, total_delta):
        return Interval(low=Fraction(0), high=Fraction(0))
    return bracket(lambda e: below(worst_case(releases, e).delta, total_delta), Fraction(0), high, digits)


def _deviation(releases: RepeatedRelease) -> arb:
    root = (2 * releases.count * (1 / ball(releases.delta)).log()).sqrt()
    return ball(releases.epsilon) * root
