"""How many guesses can be right where what shows of one canary is independent of the others, by a mechanism's curve.

Each of m canaries is included by a fair coin of its own, and goes through a channel of its own. Given all that was
observed, coin i is then guessed right with a probability of at most its larger posterior M_i, independently of the
others, so r guesses of any choice are right no more often than those of the r largest posteriors. Of these let u be the
share of the channel's outcomes with a posterior above the (r+1)-th largest: U ~ Beta(r + 1, m - r), the r are
independent draws from that share, and a guess among them is wrong with a probability of at least

    e(u) = max over (epsilon, delta) of (1 - delta / u) / (1 + exp(epsilon)),

for right <= exp(epsilon) wrong + delta, as each order of the neighbours gives at half weight, where u = right + wrong.
So P[at least v right] <= E[P[Bin(r, 1 - e(U)) >= v]], and U = 1 where all are guessed. With one channel for all
canaries, as (epsilon, delta)-DP by itself allows, none of this holds: then it is ``f_dp`` that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import bdtrc, betaincinv, ndtr

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: U is cut into this many cells of equal width on the scale of a normal deviate, and taken for its least in each.
_CELLS, _REACH = 600, 8.0
#: Relative rounding of sums of probabilities.
_SLOP = 1e-9


def p_value(canaries: int, guesses: int, correct: int, points: Sequence[tuple[float, float]]) -> float:
    """An upper bound on the chance of so many right guesses by a channel that has all (epsilon, delta) of ``points``.

    The points hold in both orders of the neighbours. 1000 guesses of 1000 canaries at epsilon 0 and delta 0.5, of which
    three quarters are right on average: 0.0357 for 775.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} right of {guesses} guesses on {canaries} canaries; each may not exceed the next")
    if correct == 0:
        return 1.0
    weights, shares = _cells(canaries, guesses)
    found = float(weights @ bdtrc(correct - 1, guesses, 1 - _wrong(shares, points)))
    return min(1.0, found * (1 + _SLOP))


def _wrong(shares: NDArray[Any], points: Sequence[tuple[float, float]]) -> NDArray[Any]:
    """The least error rate e(u) of each of ``shares``, which lie above 0."""
    epsilons, deltas = np.array(points, dtype=np.float64).reshape(-1, 2).T
    if not (len(epsilons) and ((epsilons >= 0) & (deltas >= 0) & (deltas <= 1)).all()):
        raise ValueError("a curve needs points with an epsilon of at least 0 and a delta from 0 to 1")
    each = (1 - deltas / shares[:, None]) / (1 + np.exp(epsilons))
    return np.asarray(np.clip(each.max(axis=1), 0.0, 0.5))


@lru_cache(maxsize=64)  # a search asks for the same sets again and again
def _cells(canaries: int, guesses: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The probabilities of cells of U, and the least of U in each."""
    if guesses == canaries:
        return np.ones(1), np.ones(1)
    edges = np.concatenate([[0.0], ndtr(np.linspace(-_REACH, _REACH, _CELLS + 1)), [1.0]])
    least = betaincinv(guesses + 1, canaries - guesses, edges[:-1])
    return np.diff(edges), np.maximum(least, np.finfo(np.float64).tiny)
