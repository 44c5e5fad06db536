"""A lower bound on a complete trade-off curve from one training run with canaries.

Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run", algorithm 3. Of m canaries, each
included by its own fair coin, at most c' are guessed and c guesses are right. The test rejects a hypothesized curve,
given by F(y): the least mass that an event of mass y has on the neighbouring data. For mu-GDP F(y) = Phi(Phi^-1(y) -
mu); for (epsilon, delta)-DP F(y) = max(0, (y - delta) exp(-epsilon), 1 - delta - exp(epsilon) (1 - y)).

"Not mu-GDP" becomes an epsilon only if the mechanism's curve is assumed to be Gaussian. It does not refute a claim of
(epsilon, delta)-DP; ``epsilon_bound`` does. Several pairs (epsilon, delta) that a mechanism satisfies jointly bound its
curve from below (``lines``), so refuting their F refutes that it is this mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from audits.statistics.search import largest

#: The tolerance for rounding in the comparison that rejects. The recursion only adds and multiplies positive numbers.
_SLOP = 1e-9
_PRECISION = 1e-9
#: No feasible number of canaries rejects a larger epsilon: a guess would be wrong with probability exp(-60).
_LARGEST_EPSILON = 60.0
_LARGEST_MU = 40.0

#: F in the module's docstring.
Curve = Callable[[float], float]


def gaussian(mu: float) -> Curve:
    """F of mu-GDP."""
    return lambda y: float(ndtr(ndtri(y) - mu))


def line(epsilon: float, delta: float) -> Curve:
    """F of (``epsilon``, ``delta``)-DP; a lower bound on it for an epsilon that no number of canaries rejects."""
    if epsilon > _LARGEST_EPSILON:
        return lambda y: max(0.0, (y - delta) * math.exp(-epsilon))
    shrink, grow = math.exp(-epsilon), math.exp(epsilon)
    return lambda y: max(0.0, (y - delta) * shrink, 1 - delta - grow * (1 - y))


def lines(points: Sequence[tuple[float, float]]) -> Curve:
    """F of a mechanism that is (epsilon, delta)-DP for every one of ``points``: the pointwise maximum of theirs.

    Increasing, convex and at most the mechanism's own F. Raises ValueError for an epsilon outside [0, 30] or a delta
    outside [0, 1].
    """
    epsilons, deltas = np.array(points, dtype=np.float64).reshape(-1, 2).T
    if not (len(epsilons) and ((epsilons >= 0) & (epsilons <= 30) & (deltas >= 0) & (deltas <= 1)).all()):
        raise ValueError("a curve needs points with epsilon from 0 to 30 and delta from 0 to 1")
    shrink, grow = np.exp(-epsilons), np.exp(epsilons)
    return lambda y: max(0.0, float(((y - deltas) * shrink).max()), float((1 - deltas - grow * (1 - y)).max()))


def rejects(canaries: int, guesses: int, correct: int, curve: Curve, alpha: float = 0.05) -> bool:
    """Whether this many correct guesses have a probability below ``alpha`` under ``curve``, which is F above.

    Raises ValueError for inconsistent counts or an ``alpha`` outside (0, 0.5).
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} right of {guesses} guesses on {canaries} canaries; each may not exceed the next")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha}; it must lie between 0 and 0.5")
    limit = guesses / canaries * (1 + _SLOP)
    right, wrong = alpha * correct / canaries, alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        grown = max(wrong, curve(right))
        if grown == wrong:
            break  # a fixed point: neither mass changes from here on
        right = min(1.0, right + i / (guesses - i) * (grown - wrong))
        wrong = grown
        if right + wrong > limit:
            break  # both only increase
    return right + wrong > limit


@lru_cache(maxsize=4096)  # an audit recomputes its ceilings with every result
def mu_bound(canaries: int, guesses: int, correct: int, alpha: float = 0.05) -> float:
    """The largest mu at which mu-GDP is rejected, rounded down to a billionth; 0 if none is.

    ``mu_bound(1000, 100, 95)`` is 0.78681.
    """
    return _largest(lambda mu: rejects(canaries, guesses, correct, gaussian(mu), alpha), _LARGEST_MU)


def epsilon_bound(canaries: int, guesses: int, correct: int, delta: float, alpha: float = 0.05) -> float:
    """The largest epsilon rejected at ``delta`` by the same test, rounded down to a billionth; 0 if none is.

    ``epsilon_bound(1000, 50, 50, 1e-5)`` is 2.78342, where theorem 5.2 of Steinke et al. gives 2.75622.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; it must be at least 0 and below 1")
    return _largest(lambda epsilon: rejects(canaries, guesses, correct, line(epsilon, delta), alpha), _LARGEST_EPSILON)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at ``delta``, rounded down to a billionth (Dong, Roth and Su 2019, corollary 1).

    It solves Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2) = delta; 4.377178 for mu 1, delta 1e-5.
    Raises ValueError for a negative or infinite mu, or a delta outside (0, 1).
    """
    if not (0 <= mu < math.inf and 0 < delta < 1):
        raise ValueError(f"mu is {mu} and delta {delta}; mu must not be negative, delta must lie between 0 and 1")
    if mu == 0:
        return 0.0
    # Phi(-epsilon/mu + mu/2) alone is below delta here.
    return _largest(lambda epsilon: _log_delta(epsilon, mu) > math.log(delta), mu * (mu / 2 - float(ndtri(delta))))


def _log_delta(epsilon: float, mu: float) -> float:
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    ratio = epsilon + float(log_ndtr(-epsilon / mu - mu / 2)) - first
    return first + math.log(-math.expm1(ratio)) if ratio < 0 else -math.inf


def _largest(holds: Callable[[float], bool], highest: float) -> float:
    """The largest value from 0 on for which ``holds``, approached from below."""
    if highest <= 0 or not holds(0.0):
        return 0.0
    return largest(holds, 0.0, highest, _PRECISION)
