"""A lower bound on epsilon from one training run with canaries, each included by its own fair coin.

Steinke, Nasr and Jagielski 2023, theorem 5.2, with abstentions. Of m canaries, the auditor guesses r as included or not
from the model alone, and v guesses are right. Under (epsilon, delta)-DP

    P[at least v right] <= P[B >= v] + 2 m delta max over i in 1..v of P[v - i <= B < v] / i,

where B is binomial with r trials and success probability 1 / (1 + exp(-epsilon)). That holds for any interaction of the
canaries, but only for independent coins: not for a fixed number of included canaries, nor for one canary under two
coins. For canaries with k copies, the bound is on groups of k records.

It does not hold for every v: with 10 guesses on 10 canaries at epsilon 0 and delta 0.01, at least 3 may be right with
probability 0.960, and the bound is 0.954. Linear programs over all mechanisms find such cases only where P[B >= v] is
above one half, which no test rejects, and the p-value is 1 there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincc, expit

from audits.statistics.search import largest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The relative tolerance for rounding in tail probabilities, far above the error of the incomplete beta function.
_SLOP = 1e-9
_PRECISION = 1e-9
#: Probabilities below this may be rounded to 0, and to each other. Only those far above the mean are: there, the mean
#: over more of them still rises.
_ROUNDED_TO_NOTHING = 1e-290


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of this many correct guesses under (``epsilon``, ``delta``)-DP.

    ``p_value(1000, 100, 95, 1, 1e-5)`` is 6.6391e-4. Never below the theorem's value, and at most a billionth above it;
    1 if delta is above 0 and as many are right more often than not without it. Raises ValueError for inconsistent
    counts, a negative epsilon or a delta outside [0, 1).
    """
    _check(canaries, guesses, correct, delta)
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}; it must not be negative")
    tail = _tail(correct, guesses, epsilon)
    if delta and tail > 0.5:
        return 1.0
    if delta:
        tail += 2 * canaries * delta * _steepest(correct, guesses, epsilon)
    return min(1.0, tail * (1 + _SLOP))


@lru_cache(maxsize=4096)  # an audit recomputes its ceilings with every result
def epsilon_bound(canaries: int, guesses: int, correct: int, delta: float, alpha: float = 0.05) -> float:
    """An epsilon rejected at ``delta``, within a billionth of the largest one; 0 if none is.

    ``epsilon_bound(1000, 100, 95, 1e-5)`` is 2.165176. Every (epsilon', delta)-DP mechanism with a smaller epsilon' is
    also rejected, because it is (epsilon, delta)-DP too.
    """
    _check_alpha(alpha)
    if p_value(canaries, guesses, correct, 0.0, delta) >= alpha:
        return 0.0
    highest = _pure_ceiling(guesses, alpha) + 1
    return largest(
        lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) < alpha, 0.0, highest, _PRECISION
    )


def guess(scores: NDArray[Any], k_plus: int, k_minus: int) -> NDArray[np.int8]:
    """+1 for the ``k_plus`` highest scores, -1 for the ``k_minus`` lowest, 0 for the others, [scores].

    Scores tied across a threshold all get 0, so the result depends only on the scores, not on their order or on chance.
    Guesses not made count as wrong, which keeps theorem 5.2 valid: it allows at most r guesses. Raises ValueError for
    NaN and for numbers of guesses that do not fit.
    """
    count = len(scores)
    if not 0 <= min(k_plus, k_minus) <= k_plus + k_minus <= count:
        raise ValueError(f"{k_plus} and {k_minus} guesses do not fit {count} scores")
    if np.isnan(scores).any():
        raise ValueError("scores hold NaN; every canary needs a score")
    ordered = np.concatenate([[-np.inf], np.sort(scores), [np.inf]])
    guesses = np.zeros(count, np.int8)
    guesses[scores > ordered[count - k_plus]] = 1
    guesses[scores < ordered[k_minus + 1]] = -1
    return guesses


def divide(scores: NDArray[Any]) -> NDArray[np.int8]:
    """+1 above a threshold and -1 below it, [scores].

    The threshold is in the widest gap near the middle, within four standard deviations of the number of included
    canaries: scores that separate the coins perfectly are guessed without error, whatever that number is. Equal scores
    are never separated; if all scores near the middle are equal, those get 0. Raises ValueError for NaN.
    """
    count = len(scores)
    if np.isnan(scores).any():
        raise ValueError("scores hold NaN; every canary needs a score")
    guesses = np.zeros(count, np.int8)
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    reach = math.ceil(2 * math.sqrt(count))
    low, high = max(0, count // 2 - reach), min(count - 1, count // 2 + reach)
    if high <= low:
        return guesses
    gaps = np.diff(ordered[low : high + 1])
    widest = low + int(np.argmax(gaps))
    guesses[scores >= ordered[widest + 1]] = 1
    guesses[scores <= ordered[widest]] = -1
    if ordered[widest + 1] == ordered[widest]:
        guesses[scores == ordered[widest]] = 0
    return guesses


def _tail(least: int, trials: int, epsilon: float) -> float:
    """P[B >= least], from 1 - q, which is exact if q rounds to 1."""
    if least <= 0:
        return 1.0
    return float(betaincc(trials - least + 1, least, expit(-epsilon)))


def _steepest(correct: int, guesses: int, epsilon: float) -> float:
    """The largest P[v - i <= B < v] / i over i in 1..v.

    It is the mean of i binomial probabilities just below v. They are unimodal, so the mean is unimodal in i, and
    bisection finds its maximum.
    """
    tail = _tail(correct, guesses, epsilon)

    def mean(i: int) -> float:
        return (_tail(correct - i, guesses, epsilon) - tail) / i

    def falls(i: int) -> bool:
        mean_here = mean(i)
        return mean_here > _ROUNDED_TO_NOTHING and mean(i + 1) <= mean_here

    return mean(1 + bisect_left(range(1, correct), True, key=falls))


def _pure_ceiling(guesses: int, alpha: float) -> float:
    """logit(alpha^(1/r)): the epsilon at which the p-value is alpha, with delta 0 and every guess right."""
    log = math.log(alpha) / guesses
    return max(0.0, log - math.log(-math.expm1(log)))


def _check(canaries: int, guesses: int, correct: int, delta: float) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} right of {guesses} guesses on {canaries} canaries; each may not exceed the next")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; it must be at least 0 and below 1")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha}; it must lie between 0 and 0.5")
