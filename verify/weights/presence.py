"""Tests whether the noise that a report claims is in the weights, valid whatever the clipped gradients were.

Consider the same run with every gradient 0, whose moves are noise alone with a known distribution. A batch of K
examples shifts a step's noise by at most K C / B, and the noise has standard deviation sigma C / B, whatever happened
before. So distinguishing the actual run from the run without gradients is at least as hard as distinguishing N(R, 1)
from N(0, 1), with R^2 = sum K_t^2 / sigma^2: composed Gaussian differential privacy (Dong, Roth and Su 2022, theorem
3.7 and corollary 3.3). An event of probability p without gradients has at most Phi(R + Phi^-1(p)) with them. A test may
therefore reject if p < Phi(-R - z), where Phi(-z) is its level. It has power only if there are more weights than R^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, log_ndtr

from verify.laws.common import normal_quantile
from verify.weights.law import NoiseLaw
from verify.weights.tally import Tally

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The least multiple of the noise that the test of norms considers; below it, the grid of the noise is detectable.
_LEAST_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Tests, each at ``level``, of a run whose gradients shift its noise by ``shift`` (R) standard deviations.

    ``law`` is the distribution of one move. ``stddevs`` holds the least and the largest standard deviation of a move
    for gradient descent, where moves are Gaussian; None for Adam.
    """

    shift: float
    level: float
    law: NoiseLaw
    stddevs: tuple[float, float] | None

    @property
    def limit(self) -> float:
        """The log of the probability without gradients below which an event makes the test reject."""
        return float(log_ndtr(-self.shift - float(normal_quantile(self.level))))

    def needed(self, elements: int) -> float:
        """The divergence in nats per weight, between the weights and the distribution of noise, that is detected."""
        return (_log_types(elements, len(self.law.chances)) - self.limit) / elements

    def visible(self, tally: Tally) -> bool:
        """Whether the test would reject if none of the weights of ``tally`` had moved."""
        return tally.elements > 0 and self.divergence(tally.still) > self.needed(tally.elements)

    def noticed(self, tally: Tally) -> tuple[float, float]:
        """The multiples of the claimed noise below and above which it is detected, allowing for rounding."""
        assert self.stddevs is not None
        lower, upper = self.ratios(tally.elements)
        room = math.sqrt(tally.room / tally.elements)
        return lower - room / self.stddevs[0], upper + room / self.stddevs[1]

    def ratios(self, elements: int) -> tuple[float, float]:
        """The range of multiples of the claimed noise that pass the test of norms; from 0 if even no noise passes."""
        from scipy.optimize import brentq  # imported here because the import takes longer than most verifications

        goal = 2 * self.limit / elements

        def tail(ratio: float) -> float:
            return 1 - ratio * ratio + 2 * math.log(ratio) - goal

        lower = 0.0 if tail(_LEAST_RATIO) >= 0 else float(brentq(tail, _LEAST_RATIO, 1.0))
        upper = 2.0
        while tail(upper) > 0:
            upper *= 2
        return lower, float(brentq(tail, 1.0, upper))

    def complaint(self, tally: Tally) -> str:
        """What is wrong with the moves of ``tally``; "" if nothing is."""
        if tally.elements == 0:
            return ""
        if self.stddevs is not None:
            lower, upper = self.ratios(tally.elements)
            smallest = math.sqrt(tally.low / tally.elements) / self.stddevs[1]
            largest = math.sqrt(tally.high / tally.elements) / self.stddevs[0]
            if largest < lower:
                return f"it moved {largest:.3g} times as far as noise alone, and less than {lower:.3g} is not possible"
            if smallest > upper:
                return (
                    f"it moved {smallest:.3g} times as far as noise alone, and with these clipped gradients more "
                    f"than {upper:.3g} is not possible"
                )
        nats, needed = self.divergence(tally.between), self.needed(tally.elements)
        if nats > needed:
            return (
                f"its moves are not those of weights with this noise: their law differs by {nats:.3g} nats a weight, "
                f"where clipped gradients make up to {needed:.3g}"
            )
        return ""

    def divergence(self, between: NDArray[np.int64]) -> float:
        """A lower bound on the Kullback-Leibler divergence, in nats per weight, of the weights from the law.

        ``between`` [m, m] counts weights by the first and the last interval that may contain them. For any q, the sum
        of p^ log(q / p) is at most the divergence of the empirical p^ from p. Each weight counts in the interval where
        it adds least.
        """
        chances, elements = self.law.chances, int(between.sum())
        first, last = np.nonzero(between)
        spans = [*zip(first.tolist(), last.tolist(), between[first, last].tolist(), strict=True)]
        seen = np.zeros(len(chances))
        for low, high, count in spans:
            among = chances[low : high + 1]
            seen[low : high + 1] += count * among / among.sum()
        gains = np.log(((1 - 1e-4) * seen / elements + 1e-4 * chances / chances.sum()) / chances)
        total: float = sum(count * float(gains[low : high + 1].min()) for low, high, count in spans)
        return total / elements


def _log_types(elements: int, parts: int) -> float:
    """The log of the number of ways to distribute ``elements`` weights over ``parts`` intervals.

    By the method of types, P(empirical divergence from the law >= d) <= choices exp(-n d).
    """
    return float(gammaln(elements + parts) - gammaln(elements + 1) - gammaln(parts))
