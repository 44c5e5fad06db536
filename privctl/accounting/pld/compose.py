"""Composition: powers of the steps' discretised, tilted losses under one Fourier transform."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privctl.accounting.pld.distribution import LossDistribution, SimpleBounds, WrappedMass
from privctl.accounting.pld.grid import UNIT_ROUNDOFF, LossGrid, connect, grid_edges, log_sum, merge
from privctl.accounting.pld.grid_plan import NEGLIGIBLE, FirstEstimate, GridPlan, RepeatedPair, make_plan, sketch_of
from privctl.accounting.pld.spectrum import StepSpectrum, power

#: How often the grid may be refined for one epsilon.
_REFINEMENTS = 3
#: Approximate relative increase of epsilon that the grid may cause.
FINE, COARSE = 2e-5, 1e-3


def compose(
    steps: Sequence[RepeatedPair], *, log_delta: float | None, precision: float = FINE, lower: bool = False
) -> LossDistribution:
    """The privacy loss distribution of all ``steps``: every delta is an upper bound, or a lower bound if ``lower``.

    ``log_delta`` is the logarithm of the delta at which the result is tight; None optimizes for the bulk, for whole
    trade-off functions. ``precision`` is roughly the relative increase of epsilon due to the grid (``FINE``,
    ``COARSE``).
    """
    sketches = [sketch_of(step, (log_delta or 0.0) - NEGLIGIBLE - 9) for step in steps]
    log_tail = (-NEGLIGIBLE if log_delta is None else log_delta) - math.log(sum(step.count for step in steps)) - 18
    plan = make_plan(steps, sketches, log_delta, log_tail, precision, lower=lower)
    composed = _compose_on(plan, steps, lower=lower)
    if log_delta is None:
        return composed
    # The first plan is based on moments, which rare, large losses may dominate; its result shows how fine a grid
    # epsilon needs, and how much tilt is possible before rounding errors dominate.
    delta, count = math.exp(log_delta), sum(step.count for step in steps)
    best, epsilon, long = composed, composed.epsilon(delta), False
    for _ in range(_REFINEMENTS):
        estimate = _estimate_near(composed, epsilon, delta)
        if estimate is None:
            break
        too_coarse = count * (1 + estimate.slope) * plan.interval**2 > 36 * precision * estimate.epsilon
        inaccurate = (
            composed.log_rounding_error(estimate.epsilon) > math.log(precision) + log_delta
        )  # the product may be 0
        if not too_coarse and not inaccurate:
            break
        finer = make_plan(steps, sketches, log_delta, log_tail, precision, lower=lower, estimate=estimate)
        tilts_less = inaccurate and finer.tilt < 0.95 * plan.tilt
        if inaccurate and not tilts_less and not long:
            long = True
        elif finer.interval > 0.8 * plan.interval and not tilts_less:
            break
        plan, composed = finer, _compose_on(finer, steps, lower=lower, long=long)
        finer_epsilon = composed.epsilon(delta)
        if (finer_epsilon > epsilon) == lower:
            best, epsilon = composed, finer_epsilon
    return best


def _compose_on(plan: GridPlan, steps: Sequence[RepeatedPair], *, lower: bool, long: bool = False) -> LossDistribution:
    discretise = merge if lower else connect
    grids = [
        discretise(step.pair, grid_edges(ends, plan.interval)) for step, ends in zip(steps, plan.ends, strict=True)
    ]
    return _convolve(steps, grids, plan, lower=lower, long=long)


def _estimate_near(distribution: LossDistribution, epsilon: float, delta: float) -> FirstEstimate | None:
    """Epsilon and the slope of log delta there; None if epsilon is 0 or infinite."""
    if not 0 < epsilon < math.inf:
        return None
    before = distribution.log_delta(max(0.0, epsilon - 2 * distribution.interval))
    width = min(epsilon, 2 * distribution.interval)
    return FirstEstimate(epsilon, max(0.0, (before - math.log(delta)) / width))


def _convolve(
    steps: Sequence[RepeatedPair], grids: Sequence[LossGrid], plan: GridPlan, *, lower: bool, long: bool
) -> LossDistribution:
    h = plan.interval
    first = math.floor(plan.low / h)
    size = _fast_length(max(math.ceil(plan.high / h) - first + 1, *(len(g.log_p) for g in grids)))
    log_scale, finite, parts = 0.0, 0.0, []
    for step, grid in zip(steps, grids, strict=True):
        tilted = grid.log_p + plan.tilt * h * (grid.first + np.arange(len(grid.log_p)))
        normaliser = log_sum(tilted)
        parts.append(StepSpectrum(np.exp(tilted - normaliser), grid.first, step.count))
        log_scale += step.count * (normaliser + (-64 if lower else 64) * UNIT_ROUNDOFF)
        infinite = math.exp(min(grid.log_infinity, 0.0))
        finite += step.count * (math.log1p(-infinite) if infinite < 1 else -math.inf)
    # The probability that some step's loss is infinite, 1 - prod (1 - mass), rounded up.
    log_outside = math.log(-math.expm1(finite)) + 64 * UNIT_ROUNDOFF if finite < 0 else -math.inf
    composed = power(parts, size, long=long)
    log_scale, margin = log_scale + composed.log_factor, composed.margin
    # Entry i is the loss h * (offset + i), modulo the size; rotate the window's first loss to index 0.
    masses = np.roll(composed.masses, (composed.offset - first) % size)
    first_loss, last_loss = h * first, h * (first + size)
    if lower:
        wrapped = _wrapped_mass(steps, grids, plan, size)
        return LossDistribution(first_loss, h, masses, plan.tilt, log_scale, -math.inf, margin, True, wrapped)
    beyond = min(
        _cumulant(steps, grids, h, plan.tilt + push) - (plan.tilt + push) * last_loss for push in _extra_tilts(plan)
    )
    log_beyond = float(np.logaddexp(log_outside, min(0.0, beyond)))
    simple = _simple_bounds(steps, grids, plan, log_outside)
    return LossDistribution(first_loss, h, masses, plan.tilt, log_scale, log_beyond, margin, simple=simple)


def _simple_bounds(
    steps: Sequence[RepeatedPair], grids: Sequence[LossGrid], plan: GridPlan, log_infinite: float
) -> SimpleBounds:
    variation = 0.0
    for step in steps:
        log_p, log_q = step.pair.cells(np.zeros(1))
        variation += step.count * (math.exp(log_p[1]) - math.exp(log_q[1]) + 4 * UNIT_ROUNDOFF)
    tilts = [plan.tilt * 4.0**k for k in range(-1, 4)] if plan.tilt else []
    moments = tuple((tilt, _cumulant(steps, grids, plan.interval, tilt)) for tilt in tilts)
    return SimpleBounds(math.log(max(variation, 5e-324)), log_infinite, moments)


def _wrapped_mass(steps: Sequence[RepeatedPair], grids: Sequence[LossGrid], plan: GridPlan, size: int) -> WrappedMass:
    h = plan.interval
    width = h * size
    value = _cumulant(steps, grids, h, plan.tilt)
    below = min(0.0, *(_cumulant(steps, grids, h, -push) + push * plan.low for push in _extra_tilts(plan)))
    tilted = min(_cumulant(steps, grids, h, plan.tilt - push) - value + push * plan.low for push in _extra_tilts(plan))
    above = tuple((push, _cumulant(steps, grids, h, plan.tilt + push) - value) for push in _extra_tilts(plan))
    return WrappedMass(below - plan.tilt * width, min(0.0, tilted), width, above)


def _extra_tilts(plan: GridPlan) -> list[float]:
    """Additional tilts to try in Chernoff bounds on the mass outside the window."""
    unit = 2 * NEGLIGIBLE / max(plan.high - plan.low, plan.interval)
    return [unit * 2.0**k for k in range(-3, 5)]


def _cumulant(steps: Sequence[RepeatedPair], grids: Sequence[LossGrid], h: float, tilt: float) -> float:
    """Log E exp(tilt * loss) of the composition of all discretised steps."""
    return sum(
        step.count * log_sum(grid.log_p + tilt * h * (grid.first + np.arange(len(grid.log_p))))
        for step, grid in zip(steps, grids, strict=True)
    )


def _fast_length(least: int) -> int:
    """The smallest 2^a 3^b 5^c >= ``least`` with a >= 1: a length for which transforms are fast."""
    best = 1 << max(1, (least - 1).bit_length())
    five = 1
    while five < best:
        odd = five
        while odd < best:
            best = min(best, odd << max(1, (-(-least // odd) - 1).bit_length()))
            odd *= 3
        five *= 5
    return best
