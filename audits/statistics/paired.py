"""Whether one of two scores of the same records distinguishes members from non-members better than the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.statistics.laws import mean_ranks
from audits.statistics.metrics import auc

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A variance this small relative to that of the two areas is zero up to rounding.
_ROUNDING = 1e-12


def auc_difference(
    first_members: NDArray[Any],
    first_nonmembers: NDArray[Any],
    second_members: NDArray[Any],
    second_nonmembers: NDArray[Any],
) -> tuple[float, float]:
    """The difference of two AUCs on the same records, and its standard error (DeLong et al. 1988; Sun and Xu 2014).

    Entry i of both members' arrays is the same record, and likewise for the non-members. O(n log n). The standard error
    is NaN where DeLong's variance is 0: complete separation by both, or the same order by both. The ovarian cancer data
    of the 1988 paper give 0.0108 and 0.0953 for albumin against the K-G score. Raises ValueError if the numbers of
    records differ.
    """
    if len(first_members) != len(second_members) or len(first_nonmembers) != len(second_nonmembers):
        raise ValueError("the two scores are not of the same records: their numbers differ")
    difference = auc(first_members, first_nonmembers).value - auc(second_members, second_nonmembers).value
    return difference, _stderr(
        _placements(first_members, first_nonmembers), _placements(second_members, second_nonmembers)
    )


def _placements(members: NDArray[Any], nonmembers: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each member's fraction of non-members below it, and each non-member's of members above it; ties count half."""
    m, n = len(members), len(nonmembers)
    pooled = mean_ranks(np.concatenate([members, nonmembers]))
    return (pooled[:m] - mean_ranks(members)) / n, 1 - (pooled[m:] - mean_ranks(nonmembers)) / m


def _stderr(
    first: tuple[NDArray[np.float64], NDArray[np.float64]], second: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> float:
    variance, scale = 0.0, 0.0
    for first_placements, second_placements in zip(first, second, strict=True):
        if len(first_placements) < 2:
            return math.nan
        # The variance of the difference already accounts for the covariance.
        variance += float((first_placements - second_placements).var(ddof=1)) / len(first_placements)
        scale += float(first_placements.var(ddof=1) + second_placements.var(ddof=1)) / len(first_placements)
    return math.sqrt(variance) if variance > _ROUNDING * scale else math.nan
