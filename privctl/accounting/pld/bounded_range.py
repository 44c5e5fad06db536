"""The dominating pair of mechanisms whose losses lie in an interval of known length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.pairs import Array, Span, log_differences


@dataclass(frozen=True, slots=True)
class BoundedRange:
    """The pair that dominates all mechanisms whose losses lie in an interval of length ``epsilon``.

    Mechanisms with two outcomes are worst, with losses t and t - ``epsilon``; maximizing over t gives
    delta(x) = (1 - e^((x - epsilon) / 2))^2 / (1 - e^-epsilon) (Dong, Durfee and Rogers 2020), so under P a loss
    exceeds x with probability (1 - e^((x - epsilon) / 2)) / (1 - e^-epsilon). The pair is symmetric.
    """

    epsilon: float

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        log_p = log_differences(self._log_at_most(edges), self._log_above(edges))
        return log_p, log_differences(self._log_above(-edges), self._log_at_most(-edges))

    def _log_above(self, losses: Array) -> Array:
        """Log probability under P that the loss exceeds each of ``losses``."""
        inside = np.clip(losses, -self.epsilon, self.epsilon)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1((inside - self.epsilon) / 2)) - math.log(-math.expm1(-self.epsilon)))

    def _log_at_most(self, losses: Array) -> Array:
        """Log probability under P that the loss is at most each of ``losses``."""
        up = np.clip(losses + self.epsilon, 0.0, 2 * self.epsilon) / 2
        with np.errstate(divide="ignore"):
            return np.asarray(up + np.log(-np.expm1(-up)) - self.epsilon - math.log(-math.expm1(-self.epsilon)))

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        return Span(-self.epsilon, self.epsilon, -self.epsilon, self.epsilon)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        return np.linspace(-self.epsilon, self.epsilon, count)
