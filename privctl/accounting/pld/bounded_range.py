"""The dominating pair of mechanisms whose losses lie within an interval of known length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.pairs import Array, Span, log_differences


@dataclass(frozen=True, slots=True)
class BoundedRange:
    """The pair of the largest delta, at every epsilon, of mechanisms whose losses lie in an interval this long.

    Those of two outcomes are worst, with losses t and t - ``epsilon``; the best t for each gives delta(x) = (1 -
    e^((x - epsilon) / 2))^2 / (1 - e^-epsilon) (Dong, Durfee and Rogers 2020), so that under P a loss above x has the
    probability (1 - e^((x - epsilon) / 2)) / (1 - e^-epsilon). The pair is its own mirror image.
    """

    epsilon: float

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        log_p = log_differences(self._log_at_most(edges), self._log_above(edges))
        return log_p, log_differences(self._log_above(-edges), self._log_at_most(-edges))

    def _log_above(self, losses: Array) -> Array:
        """Under P."""
        inside = np.clip(losses, -self.epsilon, self.epsilon)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1((inside - self.epsilon) / 2)) - math.log(-math.expm1(-self.epsilon)))

    def _log_at_most(self, losses: Array) -> Array:
        """Under P."""
        up = np.clip(losses + self.epsilon, 0.0, 2 * self.epsilon) / 2
        with np.errstate(divide="ignore"):
            return np.asarray(up + np.log(-np.expm1(-up)) - self.epsilon - math.log(-math.expm1(-self.epsilon)))

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        return Span(-self.epsilon, self.epsilon, -self.epsilon, self.epsilon)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        return np.linspace(-self.epsilon, self.epsilon, count)
