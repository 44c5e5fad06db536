"""What floating-point noise on a grid may add to a bound, computed again: back to the mechanism in real arithmetic.

A number is released as the nearest of the grid's points to x + Z', with Z' within A R of a Gaussian Z in standard
deviations, R the radius of its pair; ``privctl.accounting.gridded`` has the theorem. Here the cost is bounded anew: the
law of a pair's two cells against the same two cells with each edge moved by the error, and all pairs together by
Chernoff's bound on a sum of bounded log ratios, minimized over its free parameter in steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from privctl.domain.guarantee import Arithmetic, Guarantee, RiskMeasure, Scope
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from verify.stated import method_of, training_of

#: What this program can have drawn: deviates this near to Gaussians, on grids of fewer steps a deviation than this.
_ACCURACY, _STEPS = 2.0**-48, 64.0
#: The share of delta that tails may take.
_TAILS = 2.0**-20
_REMOTE = -100.0
#: Tails are set aside for an epsilon of this at least: a tail costs what it weighs, and under a large delta too much.
_LEAST = 16.0


@dataclass(frozen=True, slots=True)
class IdealGuarantee:
    """A guarantee as the mechanism in real arithmetic must have it, and what was taken off."""

    guarantee: Guarantee
    epsilon: float


def objection(report: PrivacyReport, guarantee: Guarantee) -> str:
    """What is wrong with what a guarantee says of its arithmetic; empty where nothing is."""
    said = guarantee.arithmetic
    assert said is not None
    if said.accuracy != _ACCURACY or said.steps != _STEPS:
        return (
            f"it says that deviates are within {said.accuracy:.3g} of Gaussians on a grid of {said.steps:g} steps a "
            f"standard deviation; this version's are within {_ACCURACY:.3g} on {_STEPS:g}"
        )
    least = _coordinates(report)
    exact = isinstance(report.mechanism, WeightNoise)
    if least is not None and (said.coordinates < least or (exact and said.coordinates != least)):
        return f"it counts {said.coordinates} numbers released, but the report speaks of {least}"
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        if mechanism.grid is None:
            return "it includes the cost of a grid, but the mechanism names none"
        if not mechanism.grid * said.steps > mechanism.noise_stddev:
            return f"the grid {mechanism.grid:g} has more than {said.steps:g} steps a standard deviation"
    found = ideal(report, guarantee)
    if not said.epsilon >= found.epsilon * (1 - 1e-9):
        return f"it includes {said.epsilon:.6g} for floating point, but {found.epsilon:.6g} is needed"
    return ""


def ideal(report: PrivacyReport, guarantee: Guarantee) -> IdealGuarantee:
    """``guarantee`` with a smaller epsilon, delta and risks: what must hold in real arithmetic for it to hold."""
    said, claimed = guarantee.arithmetic, guarantee.epsilon
    assert said is not None
    if claimed is None:
        return IdealGuarantee(guarantee, 0.0)
    mechanism = report.mechanism
    levels = tuple(sorted(mechanism.candidate_stddevs)) if isinstance(mechanism, WeightNoise) else ()
    log_tail = _log_tail(claimed, guarantee.delta)
    ratio = _pair(levels, guarantee.scope is Scope.ALL_CANDIDATES, said, log_tail)
    cost = 2 * _sum(said.coordinates, ratio, log_tail)
    if not math.isfinite(cost):
        return IdealGuarantee(replace(guarantee, epsilon=0.0, arithmetic=None), math.inf)
    apart = _apart(_pair(levels, guarantee.scope is Scope.ALL_CANDIDATES, said, _REMOTE), said.coordinates)
    risks = []
    for risk in guarantee.risks:
        if risk.measure is RiskMeasure.ADVANTAGE or not risk.at:
            bound = risk.bound - 2 * apart
        else:
            bound = (risk.bound - apart) / (1 + apart / risk.at)
        # A bound of 1 says nothing, and nothing is to be taken off it.
        risks.append(risk if risk.bound >= 1 else replace(risk, bound=min(1.0, max(0.0, bound))))
    stripped = replace(
        guarantee,
        epsilon=max(0.0, claimed - cost),
        delta=guarantee.delta * (1 - _TAILS) * math.exp(-cost / 2),
        risks=tuple(risks),
        arithmetic=None,
    )
    return IdealGuarantee(stripped, cost)


def _apart(ratio: float, count: int) -> float:
    """Total variation of both laws: Pinsker's inequality for ``count`` pairs, and a tail that is as good as none."""
    return min(1.0, math.sqrt(count) * ratio * math.exp(ratio / 2) / 2 + math.exp(_REMOTE / 2))


def _coordinates(report: PrivacyReport) -> int | None:
    """How many numbers the report's own account says were released, at least; None where it does not say."""
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        return mechanism.dimension
    method = method_of(report)
    return None if method is None else method.released(training_of(report))


def room(mechanism: WeightNoise, epsilon: float, delta: float) -> float:
    """What noise for (``epsilon``, ``delta``) on this mechanism's weights may cost, in epsilon."""
    if mechanism.grid is None or not mechanism.dimension:
        return 0.0
    said = Arithmetic(coordinates=mechanism.dimension, accuracy=_ACCURACY, steps=_STEPS, epsilon=0.0)
    log_tail = _log_tail(epsilon, delta)
    return 2 * _sum(said.coordinates, _pair(mechanism.candidate_stddevs, False, said, log_tail), log_tail)


def _log_tail(epsilon: float, delta: float) -> float:
    """Tails are multiplied by 1 + e^epsilon at most."""
    epsilon = max(epsilon, _LEAST)
    return math.log(delta) + math.log(_TAILS / 2) - epsilon - math.log1p(math.exp(-epsilon))


def _pair(levels: tuple[float, ...], together: bool, said: Arithmetic, log_tail: float) -> float:
    """How far the log ratio of a pair's two cells goes, both coordinates together, but for pairs in the tail."""
    count = max(1, len(levels))
    reach = 1 + math.sqrt(-2 * (log_tail - math.log(said.coordinates * count)))
    if together and count > 1:
        return 2.001 * _box(levels, said.accuracy, reach)
    # The increments' deviations sum to at most sqrt(count) of their root of summed squares.
    reach *= math.sqrt(count)
    moved = said.accuracy * reach
    # An edge moved by ``moved`` changes a cell of width 1 / steps by that share of it at both ends, and its density.
    stretch = -math.log1p(-2 * moved * said.steps) if 2 * moved * said.steps < 1 else math.inf
    return 2.001 * (stretch + moved * reach)


def _box(levels: tuple[float, ...], accuracy: float, reach: float) -> float:
    """The same for the box of all nested sums of one coordinate."""
    total = moved = last = grid_before = stddev_before = 0.0
    for stddev in levels:
        increment = math.sqrt(stddev**2 - stddev_before**2)
        grid = 2.0 ** (math.frexp(stddev)[1] - 1) / (_STEPS / 2)
        deviations = reach + 2 * (grid + grid_before) / increment
        moved = moved + accuracy * increment * deviations
        total += 2 * moved / grid + deviations * (moved + last) / increment
        last, grid_before, stddev_before = moved, grid, stddev
    return total


def _sum(count: int, ratio: float, log_tail: float) -> float:
    """What a sum of ``count`` log ratios exceeds only in the tail; each is within ``ratio``, and small on average.

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
    found = min(count * (mean + s * ratio * ratio / 2) - log_tail / s for s in grid)
    return found + math.exp(log_tail)
