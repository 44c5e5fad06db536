"""Exposure: how high a canary ranks among secrets that were never planted, and what that proves.

Carlini, Liu, Erlingsson, Kos and Song 2019, "The secret sharer". With n references,

    rank = 1 + #{references with a loss of at most the canary's},  exposure = log2(n + 1) - log2(rank) bits,

so ties count against memorization, and exposure is 0 if all losses are equal. A canary that was never trained on is
exchangeable with its references: P[exposure >= t] <= 2^-t, the mean is about 1 / ln 2 = 1.4427, and rank / (n + 1) is a
p-value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaincc

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ranks(losses: NDArray[Any], references: NDArray[Any]) -> NDArray[np.int64]:
    """The rank of each loss [canaries] among itself and ``references`` [n], from 1 to n + 1."""
    return 1 + np.searchsorted(np.sort(references), losses, side="right").astype(np.int64)


def exposures(rank: NDArray[Any], among: NDArray[Any] | int) -> NDArray[np.float64]:
    """Exposure in bits for each rank among ``among`` secrets; rank 1 of 17 gives 4.0875."""
    return np.asarray(np.log2(np.asarray(among, dtype=np.float64)) - np.log2(rank), dtype=np.float64)


def least_bits(references: int, alpha: float) -> float:
    """A lower limit of the exposure among all secrets of a canary that none of the ``references`` reaches, in bits.

    It errs with probability at most ``alpha``, whatever the distribution of losses: the share of secrets with a loss of
    at most the canary's is at most Clopper and Pearson's limit (1934) for none of so many random ones, 1 - alpha^(1 /
    references). ``least_bits(1000, 0.1)`` is 8.7642.
    """
    return -math.log2(-math.expm1(math.log(alpha) / references))


def fisher(groups: Sequence[tuple[NDArray[Any], int | None]]) -> float:
    """The p-value of "none of these canaries leaked": Fisher's method, 2 ln 2 * sum of exposures against chi squared.

    ``groups`` are the exposures of canaries that share references, with the number of references, or None if they are
    ranked among all possible secrets. Sharing n references correlates the log ranks by 1 / n in the limit, which
    increases the sum's variance from c to c (1 + (c - 1) / n); Brown's method (1975) scales the statistic and its
    degrees of freedom. Raises ValueError without exposures.
    """
    count = sum(len(exposures_of_group) for exposures_of_group, _ in groups)
    if not count:
        raise ValueError("there are no exposures to combine")
    total = 2 * math.log(2) * sum(float(exposures_of_group.sum()) for exposures_of_group, _ in groups)
    spread = (
        sum(
            len(exposures_of_group) * (1 + (len(exposures_of_group) - 1) / n if n else 1)
            for exposures_of_group, n in groups
        )
        / count
    )
    return float(gammaincc(count / spread, total / spread / 2))


def deviations_below_mean(losses: NDArray[Any], references: NDArray[Any]) -> NDArray[np.float64]:
    """How many of the references' standard deviations each loss lies below their mean; 0 if they are all equal.

    Comparable across prefixes, and free of the ties of ranks.
    """
    spread = float(references.std())
    below = float(references.mean()) - np.asarray(losses, dtype=np.float64)
    # The computed mean of equal losses may differ from them in its last bits.
    return below / spread if spread > 1e-9 * (1 + abs(float(references.mean()))) else np.zeros(len(below))
