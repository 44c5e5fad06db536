"""A second bound on the cost of floating-point noise on a grid, relative to the mechanism in real arithmetic.

A number is released as the grid point nearest to x + Z', with Z' within A R standard deviations of a Gaussian Z, where
R is the radius of its pair; ``privctl.accounting.gridded`` has the theorem. Here the cost is bounded differently: the
probability of a pair's two cells is compared with that of the same cells with each edge moved by the error, and all
pairs together are covered by a Chernoff bound on a sum of bounded log ratios, minimized over a grid of exponents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from privctl.domain.guarantee import Arithmetic, Guarantee, RiskMeasure, Scope
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from verify.methods import external_training
from verify.methods.expected import EXTERNAL
from verify.stated import method_of, training_of

#: privctl's noise: the largest distance of a deviate from a Gaussian's, and the most grid steps per standard deviation.
_ACCURACY, _STEPS = 2.0**-48, 64.0
#: The share of delta that tails may take.
_TAILS = 2.0**-20
_LOG_NEGLIGIBLE = -100.0
#: Tails are budgeted as for an epsilon of at least this, since under a large delta they would otherwise cost too much.
_LEAST = 16.0


@dataclass(frozen=True, slots=True)
class IdealGuarantee:
    """The guarantee that the mechanism must satisfy in real arithmetic, and the epsilon that was subtracted."""

    guarantee: Guarantee
    epsilon: float


def objection(report: PrivacyReport, guarantee: Guarantee) -> str:
    """What is wrong with a guarantee's statement of its arithmetic; "" if nothing is."""
    stated = guarantee.arithmetic
    assert stated is not None
    if stated.accuracy != _ACCURACY or stated.steps != _STEPS:
        return (
            f"it says that deviates are within {stated.accuracy:.3g} of Gaussians on a grid of {stated.steps:g} "
            f"steps a standard deviation; this version's are within {_ACCURACY:.3g} on {_STEPS:g}"
        )
    least = _coordinates(report)
    exact = isinstance(report.mechanism, WeightNoise)
    if least is not None and (stated.coordinates < least or (exact and stated.coordinates != least)):
        return f"it counts {stated.coordinates} numbers released, but the report speaks of {least}"
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        if mechanism.grid is None:
            return "it includes the cost of a grid, but the mechanism names none"
        if not mechanism.grid * stated.steps > mechanism.noise_stddev:
            return f"the grid {mechanism.grid:g} has more than {stated.steps:g} steps a standard deviation"
    needed = ideal_guarantee(report, guarantee)
    if not stated.epsilon >= needed.epsilon * (1 - 1e-9):
        return f"it includes {stated.epsilon:.6g} for floating point, but {needed.epsilon:.6g} is needed"
    return ""


def ideal_guarantee(report: PrivacyReport, guarantee: Guarantee) -> IdealGuarantee:
    """The guarantee, with smaller epsilon, delta and risks, that must hold in real arithmetic for ``guarantee``."""
    stated, claimed = guarantee.arithmetic, guarantee.epsilon
    assert stated is not None
    if claimed is None:
        return IdealGuarantee(guarantee, 0.0)
    mechanism = report.mechanism
    levels = tuple(sorted(mechanism.candidate_stddevs)) if isinstance(mechanism, WeightNoise) else ()
    log_tail = _log_tail(claimed, guarantee.delta)
    ratio = _log_ratio_of_pair(levels, guarantee.scope is Scope.ALL_CANDIDATES, stated, log_tail)
    cost = 2 * _largest_sum(stated.coordinates, ratio, log_tail)
    if not math.isfinite(cost):
        return IdealGuarantee(replace(guarantee, epsilon=0.0, arithmetic=None), math.inf)
    distance = _total_variation(
        _log_ratio_of_pair(levels, guarantee.scope is Scope.ALL_CANDIDATES, stated, _LOG_NEGLIGIBLE), stated.coordinates
    )
    risks = []
    for risk in guarantee.risks:
        if risk.measure is RiskMeasure.ADVANTAGE or not risk.at:
            bound = risk.bound - 2 * distance
        else:
            bound = (risk.bound - distance) / (1 + distance / risk.at)
        # A bound of 1 claims nothing, so nothing is subtracted from it.
        risks.append(risk if risk.bound >= 1 else replace(risk, bound=min(1.0, max(0.0, bound))))
    stripped = replace(
        guarantee,
        epsilon=max(0.0, claimed - cost),
        delta=guarantee.delta * (1 - _TAILS) * math.exp(-cost / 2),
        risks=tuple(risks),
        arithmetic=None,
    )
    return IdealGuarantee(stripped, cost)


def _total_variation(ratio: float, count: int) -> float:
    """The total variation distance by Pinsker's inequality for ``count`` pairs, plus a negligible tail."""
    return min(1.0, math.sqrt(count) * ratio * math.exp(ratio / 2) / 2 + math.exp(_LOG_NEGLIGIBLE / 2))


def _coordinates(report: PrivacyReport) -> int | None:
    """The least number of released values that the rest of the report implies; None if it implies none."""
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        return mechanism.dimension
    if report.step == EXTERNAL:
        return external_training.parameters_of(report).released_numbers
    method = method_of(report)
    return None if method is None else method.released(training_of(report))


def largest_cost(mechanism: WeightNoise, epsilon: float, delta: float) -> float:
    """The most that floating point may add to epsilon for noise calibrated to (``epsilon``, ``delta``)."""
    if mechanism.grid is None or not mechanism.dimension:
        return 0.0
    arithmetic = Arithmetic(coordinates=mechanism.dimension, accuracy=_ACCURACY, steps=_STEPS, epsilon=0.0)
    log_tail = _log_tail(epsilon, delta)
    return 2 * _largest_sum(
        arithmetic.coordinates, _log_ratio_of_pair(mechanism.candidate_stddevs, False, arithmetic, log_tail), log_tail
    )


def _log_tail(epsilon: float, delta: float) -> float:
    """Log of the probability allowed for tails: their share of delta over 1 + e^epsilon, their largest factor."""
    epsilon = max(epsilon, _LEAST)
    return math.log(delta) + math.log(_TAILS / 2) - epsilon - math.log1p(math.exp(-epsilon))


def _log_ratio_of_pair(levels: tuple[float, ...], together: bool, arithmetic: Arithmetic, log_tail: float) -> float:
    """The largest log ratio of a pair's two cells, both coordinates together, except in the tail."""
    count = max(1, len(levels))
    reach = 1 + math.sqrt(-2 * (log_tail - math.log(arithmetic.coordinates * count)))
    if together and count > 1:
        return 2.001 * _log_ratio_of_box(levels, arithmetic.accuracy, reach)
    # The sum of the increments' standard deviations is at most sqrt(count) times their root sum of squares.
    reach *= math.sqrt(count)
    moved = arithmetic.accuracy * reach
    # Moving both edges by ``moved`` changes the width, 1 / steps, of a cell and the density in it.
    stretch = -math.log1p(-2 * moved * arithmetic.steps) if 2 * moved * arithmetic.steps < 1 else math.inf
    return 2.001 * (stretch + moved * reach)


def _log_ratio_of_box(levels: tuple[float, ...], accuracy: float, reach: float) -> float:
    """Like ``_log_ratio_of_pair``, for the box of all nested sums of one coordinate."""
    total = moved = last = grid_before = stddev_before = 0.0
    for stddev in levels:
        increment = math.sqrt(stddev**2 - stddev_before**2)
        grid = 2.0 ** (math.frexp(stddev)[1] - 1) / (_STEPS / 2)
        deviations = reach + 2 * (grid + grid_before) / increment
        moved = moved + accuracy * increment * deviations
        total += 2 * moved / grid + deviations * (moved + last) / increment
        last, grid_before, stddev_before = moved, grid, stddev
    return total


def _largest_sum(count: int, ratio: float, log_tail: float) -> float:
    """A value that a sum of ``count`` log ratios, each within ``ratio``, exceeds only in the tail.

    Hoeffding's lemma bounds the moment generating function at s by exp(s mean + s^2 ratio^2 / 2). The best s is close
    to sqrt(2 ln(1 / tail) / count) / ratio.
    """
    if not ratio < 1:
        return math.inf
    if ratio == 0:
        return 0.0
    mean = ratio * ratio * math.exp(ratio) / 2
    best = math.sqrt(-2 * log_tail / count) / ratio
    grid = (best * (1 + k / 50) for k in range(-10, 11))
    bound = min(count * (mean + s * ratio * ratio / 2) - log_tail / s for s in grid)
    return bound + math.exp(log_tail)
