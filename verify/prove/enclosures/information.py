"""Information in nats: what a budget allows, what FERRET's sign bits reveal, and Fano's inequality."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import DIGITS, Interval, Rational, ball, below, bracket, enclose

if TYPE_CHECKING:
    from flint import arb

#: The least distance from 1 of an end of a bracket.
_LEAST = Fraction(1, 10 ** (DIGITS + 3))


def divergence(p: Rational, r: Rational) -> Interval:
    """kl(p, r) = p ln(p/r) + (1-p) ln((1-p)/(1-r)) in nats, both strictly between 0 and 1.

    Example: (0.1, 0.001) gives 0.366593004807.
    """
    for name, value in (("p", p), ("r", r)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {float(value)!r}; it must be above 0 and below 1")
    return enclose(lambda: _divergence(p, r))


def posterior(nats: Rational, prior: Rational) -> Interval:
    """The largest p in [prior, 1) with kl(p, prior) <= ``nats``, Fano's bound on the probability of a correct guess.

    Example: 0.1 nats and prior 0.1 give 0.256866401710.
    """
    top = 1 - _LEAST
    if below(divergence(top, prior), nats):
        return Interval(low=top, high=Fraction(1))

    def beyond(p: Fraction) -> bool | None:
        inside = below(divergence(p, prior), nats)
        return None if inside is None else not inside

    return bracket(beyond, Fraction(prior), top)


def sign_bits(groups: int, steps: int, sample_rate: Rational, fire_probability: Rational) -> Interval:
    """The information G T s p ln 2 of FERRET's signs, in nats. Example: G=2, T=1000, s=0.005, p=1 give 6.9314718056."""
    bits = groups * steps * Fraction(sample_rate) * Fraction(fire_probability)
    return enclose(lambda: ball(bits) * ball(2).log())


def fire_probability(nats: Rational, groups: int, steps: int, sample_rate: Rational) -> Interval:
    """p* = nats / (G T s ln 2), which is above 1 if the budget cannot be used up."""
    bits = groups * steps * Fraction(sample_rate)
    return enclose(lambda: ball(nats) / (ball(bits) * ball(2).log()))


def reveal(groups: int, steps: int, sample_rate: Rational, fire_probability: Rational) -> Interval:
    """The probability 1 - [1 - s (1 - (1-p)^G)]^T that a record which decides its batch's signs is revealed.

    A published sign has P = (1, 0) and P' = (1-s, s), so the loss is infinite and this delta is needed at every
    epsilon.
    """
    s, p = Fraction(sample_rate), Fraction(fire_probability)
    return enclose(lambda: 1 - (1 - ball(s) * (1 - (1 - ball(p)) ** groups)) ** steps)


def revealing_channel(chance: Rational) -> Interval:
    """The capacity in nats of a Z-channel, which reveals one of its two inputs with probability ``chance``.

    It is ln(1 + d (1-d)^((1-d)/d)), which such a record can leak whatever the average is.
    """
    if not 0 <= chance <= 1:
        raise ValueError(f"chance is {float(chance)!r}; it must lie between 0 and 1")
    if chance in (0, 1):
        return enclose(lambda: ball(1 + Fraction(chance)).log())
    return enclose(lambda: (ball(chance) * (1 - ball(chance)) ** (ball(1 - Fraction(chance)) / ball(chance))).log1p())


def advantage_allowed(nats: Rational) -> Interval:
    """The largest true minus false positive rate that a budget of ``nats`` about one fair bit allows.

    It is the t with h((1-t)/2) = ln 2 - nats, attained by a bit that is true with probability (1+t)/2; 1 from ln 2 on.
    Example: 0.5 nats allow 0.9036225083.
    """
    room = enclose(lambda: ball(2).log() - ball(nats))
    if room.high <= 0:
        return Interval(low=Fraction(1), high=Fraction(1))

    def beyond(advantage: Fraction) -> bool | None:
        inside = below(enclose(lambda: ball(2).log() - _entropy((1 - advantage) / 2)), nats)
        return None if inside is None else not inside

    return bracket(beyond, Fraction(0), 1 - _LEAST)


def _divergence(p: Rational, r: Rational) -> arb:
    x, y = ball(p), ball(r)
    return x * (x / y).log() + (1 - x) * ((1 - x) / (1 - y)).log()


def _entropy(p: Fraction) -> arb:
    x = ball(p)
    return -x * x.log() - (1 - x) * (1 - x).log()
