"""A record that may be drawn several times into one noisy sum: the exact trade-off between epsilon and delta.

If the record is drawn j times with probability w_j, the sums are sum_j w_j N(j m, s^2) with the record and N(0, s^2)
without it. The likelihood ratio increases with the sum, so the most powerful event is a sum above a cut
(Neyman-Pearson).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import Interval, Rational, ball, enclose_all
from verify.prove.enclosures.functions import normal_cdf

if TYPE_CHECKING:
    from flint import arb


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnEvent:
    """The event S that the sum exceeds ``cut``. ``ratio`` encloses the likelihood ratio there, ``p`` P(S), ``q`` P'(S).

    Delta at epsilon = ln ratio is exactly p - ratio q.
    """

    cut: Fraction
    ratio: Interval
    p: Interval
    q: Interval


def binomial_weights(draws: int, chance: Rational) -> list[Fraction]:
    """The probabilities of being drawn 0, 1, ... times in ``draws`` independent draws."""
    rate = Fraction(chance)
    return [math.comb(draws, j) * rate**j * (1 - rate) ** (draws - j) for j in range(draws + 1)]


def drawn_event(weights: list[Fraction], move: Rational, stddev: Rational, epsilon: Rational) -> DrawnEvent:
    """The event whose likelihood ratio is slightly below e^``epsilon``."""
    step, least = float(move) / float(stddev), float(weights[0])
    parts = [(j, math.log(float(weight))) for j, weight in enumerate(weights) if j and float(weight) > 0]

    def log_ratio(x: float) -> float:
        logs = [math.log(least), *(log + j * step * (x - j * step / 2) for j, log in parts)]
        top = max(logs)
        return top + math.log(sum(math.exp(log_term - top) for log_term in logs))

    low, high = -100.0, 100.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if log_ratio(middle) < float(epsilon) - 1e-9 else (low, middle)
    cut = Fraction(low) * Fraction(stddev)

    def numbers() -> tuple[arb, arb, arb]:
        p, ratio = ball(0), ball(0)
        for j, weight in enumerate(weights):
            moved = ball(j * Fraction(move))
            p += ball(weight) * normal_cdf((moved - ball(cut)) / ball(stddev))
            ratio += ball(weight) * (moved * (ball(cut) - moved / 2) / ball(stddev) ** 2).exp()
        return ratio, p, normal_cdf(-ball(cut) / ball(stddev))

    ratio, p, q = enclose_all(numbers)
    return DrawnEvent(cut=cut, ratio=ratio, p=p, q=q)
