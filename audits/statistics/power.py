"""The statistical power of an audit of a given size: the smallest effect that it would probably have detected.

Unless stated otherwise, detectable sizes refer to randomized response: the true epsilon of a mechanism that reveals
each membership bit correctly with probability 1 / (1 + exp(-epsilon)), the most that pure epsilon-DP permits, with
every guess made. A real attack on a real mechanism is weaker, so these are the best case.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from scipy.special import bdtrc, betaincinv, expit, ndtr, ndtri

from audits.statistics import two_arm
from audits.statistics.f_dp import epsilon_of_mu
from audits.statistics.metrics import lower_limit
from audits.statistics.search import largest, smallest
from audits.statistics.several_guesses import GuessCount, rejects_claim

POWER = 0.8
_PRECISION = 1e-6
#: Randomized response with this epsilon errs with probability exp(-40), which no audit can distinguish from never.
_LARGEST = 40.0
#: Gaussian scores this far apart are always distinguished.
_LARGEST_MU = 16.0
_MU_PRECISION = 1e-4
#: An AUC as close to 1 as this is not searched.
_CERTAIN = 1e-9


@lru_cache(maxsize=4096)  # an audit repeats it with every result of the same size
def one_run_detectable(
    canaries: int, guesses: int, delta: float, alpha: float = 0.05, claim: float = 0.0, power: float = POWER
) -> float:
    """The smallest true epsilon whose one-run bound exceeds ``claim`` with probability ``power``; inf if none does.

    ``one_run_detectable(1000, 1000, 0)`` is 0.159, with claim 1 it is 1.184.
    """

    def is_rejected(right: int) -> bool:
        counted = GuessCount(canaries=canaries, guesses=guesses, correct=right)
        return rejects_claim([counted], claim, delta, alpha)

    if not is_rejected(guesses):
        return math.inf
    fewest = 1 + bisect_left(range(1, guesses), True, key=is_rejected)
    # P[B >= v] is the incomplete beta function of q, so its inverse gives q.
    rate = float(betaincinv(fewest, guesses - fewest + 1, power))
    return math.log(rate) - math.log1p(-rate)


def one_run_detectable_gaussian(
    canaries: int, guesses: int, delta: float, alpha: float = 0.05, claim: float = 0.0, power: float = POWER
) -> float:
    """As ``one_run_detectable``, for a Gaussian mechanism and the best attack on each canary; its epsilon at ``delta``.

    Half of the guesses go to the highest scores and half to the lowest; scores of included canaries are shifted by mu.
    inf if no mu suffices, NaN for delta 0. ``one_run_detectable_gaussian(1000, 200, 1e-5, 0.025, 1)`` is about 3.5.
    """
    if not delta:
        return math.nan
    least = one_run_detectable(canaries, guesses, delta, alpha, claim, power)
    if math.isinf(least):
        return math.inf
    rate, share = float(expit(least)), guesses / 2 / canaries

    mu = _smallest(lambda mu: _success_rate(mu, share) >= rate, 0.0, _LARGEST_MU, _MU_PRECISION)
    return mu if math.isinf(mu) else epsilon_of_mu(mu, delta)


def one_run_chance(canaries: int, guesses: int, is_rejected: Callable[[int], bool], mu: float) -> float:
    """The probability that the best attack on a Gaussian mechanism of ``mu`` is right so often that it is rejected.

    ``is_rejected`` says whether that many right guesses are.
    """
    if not is_rejected(guesses):
        return 0.0
    fewest = 1 + bisect_left(range(1, guesses), True, key=is_rejected)
    return float(bdtrc(fewest - 1, guesses, min(1.0, _success_rate(mu, guesses / 2 / canaries))))


def _success_rate(mu: float, share: float) -> float:
    """The probability that a guess is right if the ``share`` of highest and of lowest scores are guessed."""
    if share >= 0.5:
        return float(ndtr(mu / 2))
    # a fraction ``share`` of all scores exceeds it
    cut = largest(lambda at: bool(ndtr(mu - at) + ndtr(-at) >= 2 * share), -40.0, 40.0 + mu, 1e-12)
    return float(ndtr(mu - cut)) / (2 * share)


@lru_cache(maxsize=64)
def two_arm_ceiling(with_count: int, without_count: int, delta: float, alpha: float = 0.05) -> float:
    """The largest epsilon these models can certify, if the record's scores separate the two arms completely.

    ``two_arm_ceiling(1000, 1000, 1e-5)`` is 5.493.
    """
    tests = two_arm.rank_tests(np.ones(with_count), np.zeros(without_count))
    return two_arm.epsilon_bound(tests, delta, alpha).value


@lru_cache(maxsize=64)
def two_arm_detectable(
    with_count: int, without_count: int, delta: float, alpha: float = 0.05, claim: float = 0.0, power: float = POWER
) -> float:
    """The smallest true epsilon whose two-arm bound exceeds ``claim`` with probability ``power``; inf if none does."""
    chance = _rejecting(with_count, without_count, delta, alpha, claim)
    return _smallest(
        lambda epsilon: chance(two_arm.ApproximateDp(epsilon=epsilon, delta=0.0)) >= power,
        min(claim, _LARGEST),
        _LARGEST,
        _PRECISION,
    )


@lru_cache(maxsize=64)
def two_arm_detectable_gaussian(
    with_count: int, without_count: int, delta: float, alpha: float = 0.05, claim: float = 0.0, power: float = POWER
) -> float:
    """As ``two_arm_detectable``, for a Gaussian mechanism, by its epsilon at ``delta``.

    Private training behaves similarly. Its epsilon shows only where false positives are as rare as delta, so far more
    models are needed. NaN for delta 0, at which no Gaussian mechanism has an epsilon.
    """
    if not delta:
        return math.nan
    chance = _rejecting(with_count, without_count, delta, alpha, claim)
    mu = _smallest(lambda mu: chance(two_arm.GaussianDp(mu=mu)) >= power, 0.0, _LARGEST_MU, _MU_PRECISION)
    return mu if math.isinf(mu) else epsilon_of_mu(mu, delta)


@lru_cache(maxsize=64)
def detectable_auc(members: int, nonmembers: int, alpha: float = 0.05) -> float:
    """The smallest true AUC whose two-sided interval at ``alpha`` lies above 1/2 with probability ``POWER``.

    Approximately: the lower limit that is computed from the AUC's lower quantile, if scores are exponential (Hanley and
    McNeil 1982) in the direction that needs more. NaN if no AUC below 1 suffices. 0.537 for 1000 and 1000.
    """
    spread = float(ndtri(POWER))

    def is_found(sizes: tuple[int, int], area: float) -> bool:
        low = area - spread * _hanley_mcneil(area, *sizes)
        return low > 0.5 and lower_limit(low, _exponential(low, sizes), alpha / 2)[0] > 0.5

    found = [
        _smallest(partial(is_found, sizes), 0.5, 1 - _CERTAIN, 1e-12)
        for sizes in ((members, nonmembers), (nonmembers, members))
    ]
    return max(found) if math.isfinite(max(found)) else math.nan


def _exponential(area: float, sizes: tuple[int, int]) -> list[tuple[int, float, float]]:
    """The arguments of ``lower_limit``: one side's shares are 1 - V^r, the other's V^(1/r), with V uniform."""
    ratio, sides = area / (1 - area), []
    for size, power, sign in ((sizes[0], ratio, -1), (sizes[1], 1 / ratio, 1)):
        first, second, third = (1 / (1 + k * power) for k in (1, 2, 3))
        sides.append((size, size * (second - first**2), sign * size * (third - 3 * first * second + 2 * first**3)))
    return sides


def detectable_area_beyond(critical: float, members: int, nonmembers: int, *, deviation: float | None = None) -> float:
    """The smallest true AUC that lies ``critical`` standard deviations above 1/2 with probability ``POWER``.

    Normal approximation with the standard error of Hanley and McNeil 1982 for exponential scores: Q1 = A / (2 - A), Q2
    = 2 A^2 / (1 + A). The standard deviation is that of an AUC under relabelling, or ``deviation``
    for a score that is fitted to labels. ``detectable_area_beyond(2.5, 500, 500)`` is 0.5601.
    """
    null = math.sqrt((members + nonmembers + 1) / (12 * members * nonmembers)) if deviation is None else deviation
    reach = critical * null
    if not 0 <= reach < 0.5:
        return math.nan
    spread = float(ndtri(POWER))

    def is_found(area: float) -> bool:
        return area - 0.5 - reach >= spread * _hanley_mcneil(area, members, nonmembers)

    return smallest(is_found, 0.5, 1.0, 1e-12)


def _hanley_mcneil(area: float, members: int, nonmembers: int) -> float:
    square = area * area
    q1, q2 = area / (2 - area), 2 * square / (1 + area)
    variance = area * (1 - area) + (members - 1) * (q1 - square) + (nonmembers - 1) * (q2 - square)
    return math.sqrt(variance / (members * nonmembers))


def _rejecting(
    with_count: int, without_count: int, delta: float, alpha: float, claim: float
) -> Callable[[two_arm.TradeOffCurve], float]:
    """A function from a mechanism's curve to the exact probability that the best single rank test rejects ``claim``.

    All tests jointly reject at least as often.
    """
    curve = two_arm.ApproximateDp(epsilon=claim, delta=delta)
    needed = []
    for test in two_arm.rank_tests(np.ones(with_count), np.zeros(without_count)):
        fewest = _fewest(test, curve, alpha * test.share)
        if fewest <= test.counted:
            needed.append((test, fewest))

    def chance(true: two_arm.TradeOffCurve) -> float:
        return max((two_arm.p_value(test, true, fewest) for test, fewest in needed), default=0.0)

    return chance


def _fewest(test: two_arm.RankTest, curve: two_arm.TradeOffCurve, level: float) -> int:
    """The number of models beyond the threshold that rejects ``curve``; more than there are if none does."""
    return bisect_left(range(test.counted + 1), True, key=lambda seen: two_arm.p_value(test, curve, seen) <= level)


def _smallest(reached: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The smallest value up to ``high`` for which ``reached`` holds, from above; inf if it fails at ``high``."""
    return smallest(reached, low, high, precision) if reached(high) else math.inf
