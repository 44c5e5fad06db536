"""The number of correct guesses if canaries' observations are independent, by a mechanism's curve.

Each of m canaries is included by its own fair coin and passes through its own channel. Given all observations, coin i
is then guessed correctly with a probability of at most its larger posterior M_i, independently of the others, so any
choice of r guesses is right no more often than those with the r largest posteriors. Let u be the fraction of the
channel's outcomes with a posterior above the (r+1)-th largest: U ~ Beta(r + 1, m - r), the r are independent draws from
that fraction, and each of these guesses is wrong with a probability of at least

    e(u) = max over (epsilon, delta) of (1 - delta / u) / (1 + exp(epsilon)),

because right <= exp(epsilon) wrong + delta, as each order of the neighbours gives at half weight, where u = right +
wrong. So P[at least v right] <= E[P[Bin(r, 1 - e(U)) >= v]], and U = 1 if all are guessed. With one channel for all
canaries, as (epsilon, delta)-DP by itself permits, none of this holds: then ``f_dp`` applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import bdtrc, betaincinv, ndtr

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: U is divided into this many cells of equal width on the scale of a normal deviate, and replaced by its minimum in
#: each.
_CELLS, _REACH = 600, 8.0
#: The relative tolerance for rounding in sums of probabilities.
_SLOP = 1e-9


def p_value(canaries: int, guesses: int, correct: int, points: Sequence[tuple[float, float]]) -> float:
    """An upper bound on the probability of this many correct guesses for a channel that satisfies all ``points``.

    The points (epsilon, delta) hold in both orders of the neighbours. With 1000 guesses on 1000 canaries at epsilon 0
    and delta 0.5, three quarters are right on average, and 775 give 0.0357. Raises ValueError for inconsistent counts
    or invalid points.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} right of {guesses} guesses on {canaries} canaries; each may not exceed the next")
    if correct == 0:
        return 1.0
    weights, shares = _cells(canaries, guesses)
    probability = float(weights @ bdtrc(correct - 1, guesses, 1 - _least_error_rates(shares, points)))
    return min(1.0, probability * (1 + _SLOP))


def _least_error_rates(shares: NDArray[Any], points: Sequence[tuple[float, float]]) -> NDArray[Any]:
    """The least error rate e(u) for each of ``shares``, which are above 0."""
    epsilons, deltas = np.array(points, dtype=np.float64).reshape(-1, 2).T
    if not (len(epsilons) and ((epsilons >= 0) & (deltas >= 0) & (deltas <= 1)).all()):
        raise ValueError("a curve needs points with an epsilon of at least 0 and a delta from 0 to 1")
    error_rate = (1 - deltas / shares[:, None]) / (1 + np.exp(epsilons))
    return np.asarray(np.clip(error_rate.max(axis=1), 0.0, 0.5))


@lru_cache(maxsize=64)  # a search uses the same sets many times
def _cells(canaries: int, guesses: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The probabilities of the cells of U, and the minimum of U in each."""
    if guesses == canaries:
        return np.ones(1), np.ones(1)
    edges = np.concatenate([[0.0], ndtr(np.linspace(-_REACH, _REACH, _CELLS + 1)), [1.0]])
    least = betaincinv(guesses + 1, canaries - guesses, edges[:-1])
    return np.diff(edges), np.maximum(least, np.finfo(np.float64).tiny)
