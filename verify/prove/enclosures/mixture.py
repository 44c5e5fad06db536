"""What a sampled, clipped and noised sum reveals about a secret in several records (Hush)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import Interval, Rational, ball, enclose
from verify.prove.enclosures.functions import normal_cdf

if TYPE_CHECKING:
    from flint import acb, arb

#: The range of quadrature, in standard deviations beyond the outermost means.
_REACH = 16
#: The precision in bits of the quadrature; no published number has more digits.
_BITS = 40
#: The distribution of the number of records is truncated once less than this mass is left.
_LEFT = Fraction(1, 10**30)
_MOST_DRAWS, _MOST_MEANS = 20_000, 30


def mixture_divergence(probabilities: Sequence[Rational], multiplier: Rational) -> Interval:
    """KL(sum_k w_k N(k, s^2) || N(0, s^2)) in nats, with w_k the probability of drawing k records, s = ``multiplier``.

    The integral of log r(x) = log sum_k w_k e^((k x - k^2/2) / s^2) under the mixture, by rigorous quadrature with
    bounds on the tails. Example: 50 records of probability 0.001 at s = 1 give 0.00206370743118.
    """
    chances = [Fraction(p) for p in probabilities]
    if not all(0 <= p <= 1 for p in chances) or multiplier <= 0:
        raise ValueError("probabilities lie between 0 and 1, and multiplier above 0; one of them does not")
    chances = [p for p in chances if p]
    return enclose(lambda: _divergence(chances, Fraction(multiplier)), bits=_BITS)


def few_enough(probabilities: Sequence[Rational]) -> bool:
    """Whether few enough records are drawn at a time for ``mixture_divergence`` to take seconds."""
    chances = [Fraction(p) for p in probabilities]
    mean, variance = sum(chances), sum(p * (1 - p) for p in chances)
    return bool(min(len(chances), float(mean) + 10 * math.sqrt(variance)) <= _MOST_MEANS)


def divergence_ceiling(probabilities: Sequence[Rational], multiplier: Rational) -> Interval:
    """The interval from 0 to E[K^2] / (2 s^2), K the records drawn, an upper bound on the divergence by convexity."""
    chances = [Fraction(p) for p in probabilities]
    square = sum(chances, Fraction(0)) ** 2 + sum((p * (1 - p) for p in chances), Fraction(0))
    return Interval(low=Fraction(0), high=square / (2 * Fraction(multiplier) ** 2))


def two_contents_advantage(probabilities: Sequence[Rational], multiplier: Rational, steps: int = 1) -> Interval:
    """P(y > 0) - P'(y > 0) for the sum y of ``steps`` draws of sum_k w_k N(k, s^2), or of sum_k w_k N(-k, s^2).

    Under P the secret's records all point one way, and under P' the other way. For one step, no test does better.
    Raises ValueError beyond 20,000 records times steps.
    """
    if len(probabilities) * steps > _MOST_DRAWS:
        raise ValueError(f"steps is {steps}; records times steps must not exceed {_MOST_DRAWS}")

    def advantage() -> arb:
        from flint import arb

        weights, s = _counts([Fraction(p) for p in probabilities], steps), ball(multiplier) * arb(steps).sqrt()
        weights, rest = _truncate(weights)
        total = arb(0)
        for k, weight in enumerate(weights):
            total += weight * (2 * normal_cdf(k / s) - 1)
        return (1 - rest) * total + rest.union(arb(0))

    return enclose(advantage, bits=60)


def _counts(chances: Sequence[Fraction], steps: int = 1) -> list[arb]:
    """The distribution of the number of records drawn in all steps together (Poisson binomial)."""
    from flint import arb_poly

    product = arb_poly([1])
    for p in chances:
        product = product * arb_poly([1 - ball(p), ball(p)])
    return list((product**steps).coeffs())


def _divergence(chances: Sequence[Fraction], multiplier: Fraction) -> arb:
    from flint import acb, arb, ctx

    weights, rest = _truncate(_counts(chances))
    s, most = ball(multiplier), len(weights) - 1
    centre = [weight * (-arb(k * k) / (2 * s * s)).exp() for k, weight in enumerate(weights)]
    norm = s * (2 * arb.pi()).sqrt()

    def integrand(x: acb, analytic: bool) -> acb:
        base, ratio, power = (x / (s * s)).exp(), acb(0), acb(1)
        for factor in centre:
            ratio, power = ratio + factor * power, power * base
        return (-x * x / (2 * s * s)).exp() / norm * ratio * ratio.log(analytic=analytic)

    low, high = -_REACH * s, most + _REACH * s
    goal = arb(2) ** (-ctx.prec // 2)
    inside = acb.integral(integrand, low, high, rel_tol=goal, abs_tol=goal).real
    divergence = (1 - rest) * (inside + _tails(most, s))
    # Above, convexity; below, mixing the two parts reduces the divergence by at most the entropy of the choice.
    above = rest * len(chances) ** 2 / (2 * s * s)
    most_left = rest.upper()
    under = most_left * (1 - most_left.log()) if most_left > 0 else arb(0)
    return divergence + arb(0, (above + under).upper())


def _truncate(weights: list[arb]) -> tuple[list[arb], arb]:
    """The weights truncated once almost no mass is left and renormalized, and the mass that was left."""
    from flint import arb

    kept, total = 0, arb(0)
    while kept < len(weights) and not 1 - total < ball(_LEFT):
        total += weights[kept]
        kept += 1
    if kept == len(weights):
        return weights, arb(0)
    return [weight / total for weight in weights[:kept]], (1 - total).nonnegative_part()


def _tails(most: int, s: arb) -> arb:
    """A ball that contains the integral over the tails, where |log r| <= (most |x| + most^2 / 2) / s^2.

    Above the largest mean, the mixture's density is at most that of N(most, s^2); below 0, at most that of N(0, s^2).
    """
    from flint import arb

    reach = arb(_REACH)
    tail, density = normal_cdf(-reach), (-reach * reach / 2).exp() / (2 * arb.pi()).sqrt()
    upper = most * (most * tail + s * density) + arb(most * most) / 2 * tail
    lower = most * s * density + arb(most * most) / 2 * tail
    bound = ((upper + lower) / (s * s)).upper()
    return arb(0, bound)
