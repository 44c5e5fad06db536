"""Planning the grid: the tilt, the interval and the window of composed losses that matter for one delta.

Everything is chosen from coarse approximations of the steps. A poor choice makes a bound looser, but never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.pairs import BEYOND_FLOATS, Array, Pair

#: A fraction exp(-NEGLIGIBLE) of a quantity is negligible.
NEGLIGIBLE = 36.0
#: A loss this far above all relevant ones counts as infinite, which adds at most exp(-_DECISIVE) of its mass; and one
#: less far above if that adds at most exp(-_SLIGHT) of delta.
_DECISIVE, _SLIGHT = 16.0, 14.0
_LARGEST_GRID = 1 << 20
#: Losses of a sketch are rounded by less than this, relatively.
_NEAR = 1e-6
_SKETCH = 1500


@dataclass(frozen=True, slots=True)
class RepeatedPair:
    """``count`` uses of one pair."""

    pair: Pair
    count: int


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The tilt, the grid's interval, the window of composed losses, and the ends of each step's own grid."""

    tilt: float
    interval: float
    low: float
    high: float
    ends: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class FirstEstimate:
    """Approximate epsilon, and the rate at which log delta decreases there, from a first composition."""

    epsilon: float
    slope: float


def make_plan(
    steps: Sequence[RepeatedPair],
    sketches: Sequence[CoarseLoss],
    log_delta: float | None,
    log_tail: float,
    precision: float,
    *,
    lower: bool,
    estimate: FirstEstimate | None = None,
) -> GridPlan:
    """The plan for a delta given by ``log_delta`` (None: for the bulk).

    Each step may move a mass of exp(``log_tail``) to infinity. ``estimate`` comes from a first, coarser composition, if
    there was one. Raises ValueError for losses that overflow.
    """
    count = sum(step.count for step in steps)
    cap, tilt, epsilon = math.inf, 0.0, 0.0
    # What counts as infinite on the grid must not decide on the tilt, under which it may outweigh everything else.
    tops = [step.pair.span(log_tail).p_high for step in steps]
    sketches = [s.below(top + _NEAR * abs(top)) for s, top in zip(sketches, tops, strict=True)]
    if log_delta is not None:
        tilt, epsilon = _saddle(sketches, -log_delta, precision)
        reach = _window_end(sketches, tilt, -1.0)
        # A single loss this large decides alone, so it can be treated as infinite and left off the grid.
        cap = (epsilon if estimate is None else estimate.epsilon) - min(reach, 0.0)
        cap += _DECISIVE if lower else _decisive(sketches, cap, log_delta)
        sketches = [sketch.below(cap) for sketch in sketches]
        tilt, epsilon = _saddle(sketches, -log_delta, precision)
        if estimate is not None:
            tilt = _tilt_for_mean(estimate.epsilon, sketches, tilt)
    low, high = _window_end(sketches, tilt, -1.0), _window_end(sketches, tilt, 1.0)
    deviation = _deviation(sketches, tilt)
    interval = deviation * math.sqrt(6 * precision / count)
    if tilt > 0:
        # Splitting a loss between two grid points adds on average h^2/6 to its variance and h^2/12 to its mean under P,
        # so count (1 + tilt) h^2 / 12 to epsilon, and never more than count h.
        gain = precision * max(epsilon, deviation / 100) / count
        interval = min(deviation / 8, math.sqrt(12 * gain / (1 + tilt)))
        if estimate is not None:
            epsilon = estimate.epsilon
            interval = min(interval, math.sqrt(12 * precision * epsilon / count / (1 + estimate.slope)))
        interval = max(interval, precision * epsilon / count)
    if lower:
        interval = min(interval, min(sketch.bulk() for sketch in sketches) / 40)
    # Neither the window nor any step's own grid may exceed the largest grid.
    ends = [_step_range(step.pair, cap, log_tail) for step in steps]
    bottom, top = (sum(s.count * end[side] for s, end in zip(steps, ends, strict=True)) for side in (0, 1))
    low, high = max(low, min(bottom, high)), min(high, max(top, low))
    interval = max(interval, *((top - bottom) / _LARGEST_GRID for bottom, top in [*ends, (low, high)]))
    spread = interval * min(2 + 6 * math.sqrt(count), _LARGEST_GRID)
    if not all(
        map(math.isfinite, (tilt, interval, low - spread, high + spread, *(end for both in ends for end in both)))
    ):
        raise ValueError(BEYOND_FLOATS)
    return GridPlan(tilt, interval, low - spread, high + spread, ends)


def _step_range(pair: Pair, cap: float, log_tail: float) -> tuple[float, float]:
    """The range of losses for which a step is discretised: mass below moves up, mass above counts as infinite."""
    bottom = pair.span(-NEGLIGIBLE - 9).p_low
    return bottom, max(bottom, min(pair.span(log_tail).p_high, cap))


def _decisive(sketches: Sequence[CoarseLoss], level: float, log_delta: float) -> float:
    """How far above ``level`` losses may count as infinite, which adds exp(-distance) of their mass to delta.

    Where losses are rare, the largest of them would otherwise outweigh the relevant ones under the tilt.
    """
    for distance in np.arange(1.0, _DECISIVE):
        mass = sum(s.count * float(np.exp(s.log_p[s.loss > level + distance]).sum()) for s in sketches)
        if mass <= math.exp(log_delta + distance - _SLIGHT):
            return float(distance)
    return _DECISIVE


def _deviation(sketches: Sequence[CoarseLoss], tilt: float) -> float:
    """The standard deviation of the composed loss; at least 1e-6 of the mean, below which it is rounding error."""
    _, mean, variance = _cumulants(sketches, tilt)
    return max(math.sqrt(max(variance, 0.0)), 1e-6 * abs(mean), 1e-12)


def _cumulants(sketches: Sequence[CoarseLoss], tilt: float) -> tuple[float, float, float]:
    value = mean = variance = 0.0
    for sketch in sketches:
        one = sketch.cumulants(tilt)
        value, mean, variance = value + one[0], mean + one[1], variance + one[2]
    return value, mean, variance


def _saddle(sketches: Sequence[CoarseLoss], surprise: float, precision: float) -> tuple[float, float]:
    """The tilt t with the tightest bound on epsilon by exponential moments, and that bound, at least 0.

    (1 - exp(epsilon - l))_+ <= exp(t (l - epsilon)) t^t / (1 + t)^(1 + t) (Canonne, Kamath and Steinke 2020). So with
    ``surprise`` = -log delta, epsilon <= (K(t) + surprise - log(1 + t) + t log(t / (1 + t))) / t, which is smallest if
    t K'(t) - K(t) + log(1 + t) = surprise.
    """

    def too_small(tilt: float) -> bool:
        value, mean, _ = _cumulants(sketches, tilt)
        return tilt * mean - value + math.log1p(tilt) < surprise

    low = high = math.sqrt(2 * surprise) / _deviation(sketches, 0.0)
    ceiling, floor = high * 1e6, low * 1e-12
    while not too_small(low) and low > floor:
        low /= 4
    # Once surprise / tilt is negligible relative to epsilon, a larger tilt gains nothing.
    while too_small(high) and high < ceiling and surprise > 0.1 * precision * _cumulants(sketches, high)[0]:
        low, high = high, high * 4
    for _ in range(16):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if too_small(middle) else (low, middle)
    gain = math.log1p(high) + high * math.log1p(1 / high)
    return high, max(0.0, (_cumulants(sketches, high)[0] + surprise - gain) / high)


def _tilt_for_mean(mean: float, sketches: Sequence[CoarseLoss], most: float) -> float:
    """The tilt, at most ``most``, that moves the mean of the composed loss to ``mean``.

    If rare, large losses dominate the moments, ``most`` would put all mass there, far above the known epsilon.
    """
    low, high = most * 1e-4, most
    for _ in range(24):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _cumulants(sketches, middle)[1] < mean else (low, middle)
    return high


def _window_end(sketches: Sequence[CoarseLoss], tilt: float, side: float) -> float:
    """A loss beyond which the tilted composed loss has mass below exp(-NEGLIGIBLE), by the best Chernoff bound."""
    value, mean, _ = _cumulants(sketches, tilt)
    best = math.inf
    push = math.sqrt(2 * NEGLIGIBLE) / _deviation(sketches, tilt)
    for factor in (2.0**-k for k in range(-3, 14)):
        theta = side * push * factor
        bound = (_cumulants(sketches, tilt + theta)[0] - value + NEGLIGIBLE) / theta
        best = min(best, side * bound)
    return side * max(best, side * mean)


@dataclass(frozen=True, slots=True)
class CoarseLoss:
    """A coarse discrete approximation of a pair's loss (log masses and losses); used for choices, not for bounds."""

    log_p: Array
    loss: Array
    count: int

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Log E exp(tilt * loss) and its first two derivatives, each times ``count``."""
        exponent = self.log_p + tilt * self.loss
        top = float(exponent.max())
        weight = np.exp(exponent - top)
        total = float(weight.sum())
        mean = float(weight @ self.loss) / total
        deviations = self.loss - mean
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(deviations, deviations, out=deviations)
            variance = float(weight @ deviations) / total
        return self.count * (top + math.log(total)), self.count * mean, self.count * variance

    def below(self, cap: float) -> CoarseLoss:
        """A copy without the losses above ``cap``; unchanged if that would leave none."""
        kept = self.loss <= cap
        return CoarseLoss(self.log_p[kept], self.loss[kept], self.count) if kept.any() else self

    def bulk(self) -> float:
        """The scale of typical losses: the standard deviation with losses clipped to [-1, 1]."""
        weight = np.exp(self.log_p)
        mean = float(np.sum(weight * np.clip(self.loss, -1, 1)))
        return max(math.sqrt(float(np.sum(weight * np.clip(self.loss - mean, -1, 1) ** 2))), 1e-12)


def sketch_edges(step: RepeatedPair, log_tail: float) -> Array:
    """Increasing losses that sample the distribution of ``step`` down to tails of exp(``log_tail``)."""
    return step.pair.sketch(_SKETCH, log_tail)


def sketch_of(step: RepeatedPair, log_tail: float) -> CoarseLoss:
    """A coarse approximation of ``step``, down to tails of exp(``log_tail``).

    Raises ValueError if its losses overflow or underflow.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        edges = sketch_edges(step, log_tail)
        log_p, log_q = step.pair.cells(edges)
        # The log ratio of a cell's masses, which also exists for the end cells, with only one finite edge.
        loss = log_p - log_q
    finite = np.isfinite(loss) & np.isfinite(log_p)
    if not finite.any():
        raise ValueError(BEYOND_FLOATS)
    return CoarseLoss(log_p[finite], loss[finite], step.count)
