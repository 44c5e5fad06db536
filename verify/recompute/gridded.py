"""The cost of floating-point noise on a grid, bounded again: back to the mechanism in real arithmetic.

A number is released as the nearest of the grid's points to x + Z', with Z' within A R of a Gaussian Z in standard
deviations, R the radius of its pair; ``privctl.accounting.gridded`` has the theorem. Here the cost is bounded another
way: the law of a pair's two cells against the same two cells with each edge moved by the error, and all pairs together
by Chernoff's bound on a sum of bounded log ratios, minimized over its free parameter in steps.
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

#: This program's noise: the largest distance of a deviate from a Gaussian's, and the most grid steps a deviation.
_ACCURACY, _STEPS = 2.0**-48, 64.0
#: The share of delta that tails may take.
_TAILS = 2.0**-20
_LOG_NEGLIGIBLE = -100.0
#: Tails are set aside for an epsilon of this at least: a tail costs what it weighs, and under a large delta too much.
_LEAST = 16.0


@dataclass(frozen=True, slots=True)
class IdealGuarantee:
    """The guarantee that the mechanism in real arithmetic must have, and the epsilon that was subtracted."""

    guarantee: Guarantee
    epsilon: float


def objection(report: PrivacyReport, guarantee: Guarantee) -> str:
    """What is wrong with a guarantee's statement of its arithmetic; empty if nothing is."""
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
    """``guarantee`` with a smaller epsilon, delta and risks: what must hold in real arithmetic for it to hold."""
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
        # A bound of 1 is no claim, so nothing is subtracted from it.
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
    """Total variation of both laws: Pinsker's inequality for ``count`` pairs, and a negligible tail."""
    return min(1.0, math.sqrt(count) * ratio * math.exp(ratio / 2) / 2 + math.exp(_LOG_NEGLIGIBLE / 2))


def _coordinates(report: PrivacyReport) -> int | None:
    """The least count of released numbers that the report states elsewhere; None where it states none."""
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        return mechanism.dimension
    if report.step == EXTERNAL:
        return external_training.parameters_of(report).released_numbers
    method = method_of(report)
    return None if method is None else method.released(training_of(report))


def largest_cost(mechanism: WeightNoise, epsilon: float, delta: float) -> float:
    """The most, in epsilon, that floating point may cost noise for (``epsilon``, ``delta``) on these weights."""
    if mechanism.grid is None or not mechanism.dimension:
        return 0.0
    arithmetic = Arithmetic(coordinates=mechanism.dimension, accuracy=_ACCURACY, steps=_STEPS, epsilon=0.0)
    log_tail = _log_tail(epsilon, delta)
    return 2 * _largest_sum(
        arithmetic.coordinates, _log_ratio_of_pair(mechanism.candidate_stddevs, False, arithmetic, log_tail), log_tail
    )


def _log_tail(epsilon: float, delta: float) -> float:
    """Log of the tail: delta's share of it, since tails are multiplied by 1 + e^epsilon at most."""
    epsilon = max(epsilon, _LEAST)
    return math.log(delta) + math.log(_TAILS / 2) - epsilon - math.log1p(math.exp(-epsilon))


def _log_ratio_of_pair(levels: tuple[float, ...], together: bool, arithmetic: Arithmetic, log_tail: float) -> float:
    """The largest log ratio of a pair's two cells, both coordinates together, except for pairs in the tail."""
    count = max(1, len(levels))
    reach = 1 + math.sqrt(-2 * (log_tail - math.log(arithmetic.coordinates * count)))
    if together and count > 1:
        return 2.001 * _log_ratio_of_box(levels, arithmetic.accuracy, reach)
    # The increments' deviations sum to at most sqrt(count) of their root of summed squares.
    reach *= math.sqrt(count)
    moved = arithmetic.accuracy * reach
    # An edge moved by ``moved`` changes a cell of width 1 / steps by that share of it at both ends, and its density.
    stretch = -math.log1p(-2 * moved * arithmetic.steps) if 2 * moved * arithmetic.steps < 1 else math.inf
    return 2.001 * (stretch + moved * reach)


def _log_ratio_of_box(levels: tuple[float, ...], accuracy: float, reach: float) -> float:
    """As ``_log_ratio_of_pair`` for the box of all nested sums of one coordinate."""
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
    """A value that a sum of ``count`` log ratios exceeds only in the tail; each is within ``ratio``, small on average.

    Hoeffding's lemma bounds the moment at s by exp(s mean + s^2 ratio^2 / 2); the best s is close to
    sqrt(2 ln(1 / tail) / count) / ratio.
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
