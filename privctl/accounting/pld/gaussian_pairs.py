"""Dominating pairs of Gaussian noise for replaced records, and for pairs drawn at random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.pairs import Array, Pair, Span, log_normal_cells, normal_quantile

#: From here on arcsinh(x) is log(2 x) to rounding.
_LARGE = 20.0


@dataclass(frozen=True, slots=True)
class OppositeMixtures:
    """P = (1 - rate) N(0, 1) + rate N(mu, 1), Q = (1 - rate) N(0, 1) + rate N(-mu, 1); a symmetric pair.

    A record of a Poisson batch replaced by its opposite (Lebeda, Regehr, Kamath and Steinke 2024, section 6).
    """

    mu: float
    rate: float

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        x = self._inverse(edges)
        centre = log_normal_cells(x) + math.log1p(-self.rate)
        log_p, log_q = (
            np.logaddexp(centre, log_normal_cells(x - shift) + math.log(self.rate)) for shift in (self.mu, -self.mu)
        )
        return log_p, log_q

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        reach = -normal_quantile(log_tail)
        near, far = (float(loss) for loss in self._loss(np.array([reach, self.mu + reach])))
        return Span(-near, far, -far, near)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        reach = self.mu - normal_quantile(log_tail)
        return np.unique(self._loss(np.linspace(-reach, reach, count)))

    def _loss(self, x: Array) -> Array:
        def one_side(x: Array) -> Array:
            growth = self.mu * (x - self.mu / 2)
            near = np.log1p(self.rate * np.expm1(np.minimum(growth, 1.0)))
            return np.where(growth < 1, near, np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + growth))

        return one_side(x) - one_side(-x)

    def _inverse(self, losses: Array) -> Array:
        """The x at which the loss, which is increasing and odd in x, reaches each value.

        With t = exp(mu x), a = 1 - rate and c = rate exp(-mu^2 / 2) the loss l is log((a + c t) / (a + c / t)), so that
        u = t exp(-l / 2) solves u^2 - 2 (a / c) sinh(l / 2) u - 1 = 0.
        """
        half = np.abs(losses) / 2
        with np.errstate(divide="ignore"):
            # log of (a / c) sinh(l / 2)
            log_b = math.log1p(-self.rate) - math.log(self.rate) + self.mu**2 / 2 + half
            log_b = log_b + np.log(-np.expm1(-2 * half)) - math.log(2)
        x = (half + np.where(log_b > _LARGE, log_b + math.log(2), np.arcsinh(np.exp(np.minimum(log_b, _LARGE))))) / (
            self.mu
        )
        return np.asarray(np.copysign(x, losses), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class OneOfPairs:
    """One of several ``pairs``, drawn with the same probabilities ``weights`` under P and Q; the draw is public."""

    pairs: tuple[Pair, ...]
    weights: tuple[float, ...]

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        log_p, log_q = np.full((2, len(edges) + 1), -np.inf)
        for pair, weight in zip(self.pairs, self.weights, strict=True):
            p, q = pair.cells(edges)
            np.logaddexp(log_p, p + math.log(weight), out=log_p)
            np.logaddexp(log_q, q + math.log(weight), out=log_q)
        return log_p, log_q

    def span(self, log_tail: float) -> Span:
        """See ``Pair``; each pair's tail probability is scaled by its weight."""
        spans = [
            pair.span(min(log_tail - math.log(weight), math.log(0.5)))
            for pair, weight in zip(self.pairs, self.weights, strict=True)
        ]
        return Span(
            min(s.p_low for s in spans), max(s.p_high for s in spans),
            min(s.q_low for s in spans), max(s.q_high for s in spans),
        )  # fmt: skip

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        return np.unique(np.concatenate([pair.sketch(count, log_tail) for pair in self.pairs]))
