"""What an audit of a given size could have found, before a word is said on what it did not find.

Detectable sizes refer to randomized response: the true epsilon of a mechanism that shows each bit of membership
rightly with probability 1 / (1 + exp(-epsilon)), the most that pure epsilon-DP allows, while every guess is made. A
real attack on a real mechanism sees less, so these are the best case.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import betainc, betaincinv, expit, ndtri

from audits.statistics import one_run, two_arm
from audits.statistics.metrics import rate_above, rate_below

POWER = 0.8
_PRECISION = 1e-6
#: Randomized response is right but for one time in exp(40), more often than any audit can tell from always.
_LARGEST = 40.0


def one_run_detectable(
    canaries: int, guesses: int, delta: float, alpha: float = 0.05, claim: float = 0.0, power: float = POWER
) -> float:
    """The smallest true epsilon whose one-run bound exceeds ``claim`` with probability ``power``; inf if none does.

    ``one_run_detectable(1000, 1000, 0)`` is 0.159, with claim 1 it is 1.184.
    """
    if one_run.p_value(canaries, guesses, guesses, claim, delta) >= alpha:
        return math.inf
    low, high = 0, guesses  # the fewest right guesses that reject lies in (low, high]
    while high - low > 1:
        middle = (low + high) // 2
        if one_run.p_value(canaries, guesses, middle, claim, delta) < alpha:
            high = middle
        else:
            low = middle
    # P[B >= v] is the incomplete beta function of q, so its inverse is the q sought.
    odds = float(betaincinv(high, guesses - high + 1, power))
    return math.log(odds) - math.log1p(-odds)


def two_arm_ceiling(with_count: int, without_count: int, delta: float, alpha: float = 0.05) -> float:
    """The largest epsilon that so many models can certify: every one called rightly. 5.601 for 1000, 1000, 1e-5."""
    return two_arm.epsilon_bound(with_count, with_count, 0, without_count, delta, alpha)


def two_arm_detectable(
    with_count: int, without_count: int, delta: float, alpha: float = 0.05, claim: float = 0.0, power: float = POWER
) -> float:
    """The smallest true epsilon whose two-arm bound exceeds ``claim`` with probability ``power``; inf if none does.

    Exact: sums over the false positives, for each of which some true positives and more exceed the claim. The
    threshold is taken as given. ``two_arm_detectable(1000, 1000, 0)`` is 0.163.
    """
    tpr = rate_below(np.arange(with_count + 1), with_count, alpha / 2)
    fpr = rate_above(np.arange(without_count + 1), without_count, alpha / 2)
    with np.errstate(over="ignore"):
        forward = np.exp(claim) * fpr + delta
    needed = np.minimum(forward, 1 - (1 - fpr - delta) * math.exp(-claim))  # of the TPR's lower limit, by either way
    least = np.searchsorted(tpr, needed, "right")

    def chance(epsilon: float) -> float:
        right = float(expit(epsilon))
        # False positives beyond 9 standard deviations would change no digit.
        spread = 9 * math.sqrt(without_count * right * (1 - right)) + 9
        first = max(0, math.floor(without_count * (1 - right) - spread))
        last = min(without_count, math.ceil(without_count * (1 - right) + spread))
        errors = np.arange(first, last + 1)
        at_most = np.ones(len(errors))
        inner = errors < without_count
        at_most[inner] = betainc(without_count - errors[inner], errors[inner] + 1, right)
        hits = least[errors]
        enough = np.where(hits > with_count, 0.0, 1.0)
        some = (hits > 0) & (hits <= with_count)
        enough[some] = betainc(hits[some], with_count - hits[some] + 1, right)
        return float(np.diff(at_most, prepend=0.0) @ enough)

    return _smallest(lambda epsilon: chance(epsilon) >= power, min(claim, _LARGEST))


def detectable_auc(members: int, nonmembers: int, alpha: float = 0.05, power: float = POWER) -> float:
    """The smallest true AUC whose two-sided interval at ``alpha`` lies above 1/2 with probability ``power``.

    Normal approximation with the standard error of Hanley and McNeil 1982, under exponential scores:
    Q1 = A / (2 - A), Q2 = 2 A^2 / (1 + A). NaN where no AUC below 1 is. 0.536 for 1000 and 1000.
    """
    null = math.sqrt((members + nonmembers + 1) / (12 * members * nonmembers))
    reach = -float(ndtri(alpha / 2)) * null
    low, high = 0.5, 1.0
    if 0.5 + reach >= 1:
        return math.nan
    while high - low > _PRECISION / 10:
        area = (low + high) / 2
        if area - 0.5 >= reach + float(ndtri(power)) * _hanley_mcneil(area, members, nonmembers):
            high = area
        else:
            low = area
    return high


def nonmembers_needed(fpr: float, alpha: float = 0.05) -> int:
    """How many non-members, none of them called a member, certify a false positive rate of ``fpr``: 299 for 1 %."""
    return math.ceil(math.log(alpha) / math.log1p(-fpr))


def resolvable_fpr(nonmembers: int, alpha: float = 0.05) -> float:
    """The smallest false positive rate that so many non-members can certify, with no false positive among them."""
    return float(rate_above(0, nonmembers, alpha))


def _hanley_mcneil(area: float, members: int, nonmembers: int) -> float:
    square = area * area
    q1, q2 = area / (2 - area), 2 * square / (1 + area)
    variance = area * (1 - area) + (members - 1) * (q1 - square) + (nonmembers - 1) * (q2 - square)
    return math.sqrt(variance / (members * nonmembers))


def _smallest(reached: Callable[[float], bool], low: float) -> float:
    if not reached(_LARGEST):
        return math.inf
    high = _LARGEST
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if reached(middle):
            high = middle
        else:
            low = middle
    return high
