"""Lower bounds from many models by a single threshold chosen before the scores were seen.

Of n models without the record, k scores exceed the threshold, and of m models with it l: two independent binomial
counts with rates F and TPR. By exact one-sided limits (Clopper and Pearson 1934), each wrong with probability alpha /
2, F is at most U and TPR at least L. A claim whose trade-off curve T has T(U) < L is rejected (Jagielski, Ullman and
Oprea 2020). Both lines of (epsilon, delta)-DP's curve, and the curves of Gaussian differential privacy at every mu, are
rejected by the same two limits, so all these bounds hold jointly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from audits.statistics.metrics import clopper_pearson
from audits.statistics.two_arm import LARGEST_EPSILON, LARGEST_MU

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCounts:
    """Scores above the ``threshold``: ``hits`` of ``inner`` models with the record, ``errors`` of ``outer`` without."""

    threshold: float
    hits: int
    inner: int
    errors: int
    outer: int

    def limits(self, alpha: float) -> tuple[float, float]:
        """The least true and the largest false positive rate, jointly wrong with probability ``alpha``."""
        return clopper_pearson(self.hits, self.inner, alpha)[0], clopper_pearson(self.errors, self.outer, alpha)[1]

    def epsilon(self, delta: float, alpha: float) -> float:
        """The largest epsilon rejected at ``delta``; 0 if none is."""
        least, most = self.limits(alpha)
        forward = _log((least - delta), most)
        backward = _log((1 - most - delta), 1 - least)
        return min(LARGEST_EPSILON, max(0.0, forward, backward))

    def mu(self, alpha: float) -> float:
        """The largest mu rejected; 0 if none is."""
        least, most = self.limits(alpha)
        return 0.0 if least <= most else min(LARGEST_MU, float(ndtri(least) - ndtri(most)))


def count(with_scores: NDArray[Any], without_scores: NDArray[Any], threshold: float) -> ThresholdCounts:
    """Count the scores of either arm above ``threshold``."""
    return ThresholdCounts(
        threshold=threshold,
        hits=int(np.count_nonzero(with_scores > threshold)),
        inner=len(with_scores),
        errors=int(np.count_nonzero(without_scores > threshold)),
        outer=len(without_scores),
    )


def _log(numerator: float, denominator: float) -> float:
    return math.log(numerator / denominator) if numerator > 0 and denominator > 0 else 0.0
