"""The plan of a grid: the tilt, the interval and the window of composed losses that matter for one delta.

All of it is chosen from rough copies of the steps. A poor choice makes a bound looser, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.pairs import BEYOND_FLOATS, Array, Pair

#: exp(-NEGLIGIBLE) of a quantity does not matter beside it.
NEGLIGIBLE = 36.0
#: A loss this far above all that matters counts as infinite: that adds exp(-_DECISIVE) of its mass.
_DECISIVE = 16.0
_LARGEST_GRID = 1 << 20
_SKETCH = 1500


@dataclass(frozen=True, slots=True)
class RepeatedPair:
    """``count`` uses of one pair."""

    pair: Pair
    count: int


@dataclass(frozen=True, slots=True)
class GridPlan:
    """Tilt, grid interval and the window of composed losses that matters."""

    tilt: float
    interval: float
    low: float
    high: float
    ends: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class FirstEstimate:
    """About what epsilon is, and how fast log delta falls there, from a first composition."""

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
    """The plan for the delta with this log (None: for the bulk); each step may lose exp(``log_tail``) to infinity.

    ``estimate`` comes from a first, coarser composition, where there was one. Raises ValueError for losses that floats
    cannot place.
    """
    count = sum(step.count for step in steps)
    cap, tilt, epsilon = math.inf, 0.0, 0.0
    if log_delta is not None:
        tilt, epsilon = _saddle(sketches, -log_delta, precision)
        reach = _edge(sketches, tilt, -1.0)
        # One loss so far up decides alone: it may as well be infinite, and the grid need not reach it.
        cap = (epsilon if estimate is None else estimate.epsilon) - min(reach, 0.0) + _DECISIVE
        sketches = [sketch.below(cap) for sketch in sketches]
        tilt, epsilon = _saddle(sketches, -log_delta, precision)
        if estimate is not None:
            tilt = _tilt_for_mean(estimate.epsilon, sketches, tilt)
    low, high = _edge(sketches, tilt, -1.0), _edge(sketches, tilt, 1.0)
    deviation = _deviation(sketches, tilt)
    interval = deviation * math.sqrt(6 * precision / count)
    if tilt > 0:
        # Placing a loss on two grid points adds h^2/6 to its variance and h^2/12 to its mean under P, on average, so
        # count (1 + tilt) h^2 / 12 to epsilon; and never more than count h.
        gain = precision * max(epsilon, deviation / 100) / count
        interval = min(deviation / 8, math.sqrt(12 * gain / (1 + tilt)))
        if estimate is not None:
            epsilon = estimate.epsilon
            interval = min(interval, math.sqrt(12 * precision * epsilon / count / (1 + estimate.slope)))
        interval = max(interval, precision * epsilon / count)
    if lower:
        interval = min(interval, min(sketch.bulk() for sketch in sketches) / 40)
    # Neither the window nor any one step may need more points than there are.
    ends = [_ends(step.pair, cap, log_tail) for step in steps]
    bottom, top = (sum(s.count * end[side] for s, end in zip(steps, ends, strict=True)) for side in (0, 1))
    low, high = max(low, min(bottom, high)), min(high, max(top, low))
    interval = max(interval, *((top - bottom) / _LARGEST_GRID for bottom, top in [*ends, (low, high)]))
    spread = interval * min(2 + 6 * math.sqrt(count), _LARGEST_GRID)
    if not all(
        map(math.isfinite, (tilt, interval, low - spread, high + spread, *(end for both in ends for end in both)))
    ):
        raise ValueError(BEYOND_FLOATS)
    return GridPlan(tilt, interval, low - spread, high + spread, ends)


def _ends(pair: Pair, cap: float, log_tail: float) -> tuple[float, float]:
    """The losses between which a step is put on the grid: mass below moves up, mass above counts as infinite."""
    bottom = pair.span(-NEGLIGIBLE - 9).p_low
    return bottom, max(bottom, min(pair.span(log_tail).p_high, cap))


def _deviation(sketches: Sequence[CoarseLoss], tilt: float) -> float:
    """The composed loss's standard deviation; where the loss is all but certain that is only rounding."""
    _, mean, variance = _cumulants(sketches, tilt)
    return max(math.sqrt(max(variance, 0.0)), 1e-6 * abs(mean), 1e-12)


def _cumulants(sketches: Sequence[CoarseLoss], tilt: float) -> tuple[float, float, float]:
    value = mean = variance = 0.0
    for sketch in sketches:
        one = sketch.cumulants(tilt)
        value, mean, variance = value + one[0], mean + one[1], variance + one[2]
    return value, mean, variance


def _saddle(sketches: Sequence[CoarseLoss], surprise: float, precision: float) -> tuple[float, float]:
    """The tilt t of the sharpest bound on epsilon that exponential moments give, and that bound, 0 at least.

    (1 - exp(epsilon - l))_+ <= exp(t (l - epsilon)) t^t / (1 + t)^(1 + t) (Canonne, Kamath and Steinke 2020). So with
    ``surprise`` = -log delta, epsilon <= (K(t) + surprise - log(1 + t) + t log(t / (1 + t))) / t, which is least where
    t K'(t) - K(t) + log(1 + t) = surprise.
    """

    def short(tilt: float) -> bool:
        value, mean, _ = _cumulants(sketches, tilt)
        return tilt * mean - value + math.log1p(tilt) < surprise

    low = high = math.sqrt(2 * surprise) / _deviation(sketches, 0.0)
    ceiling, floor = high * 1e6, low * 1e-12
    while not short(low) and low > floor:
        low /= 4
    # Beyond a tilt where surprise / tilt is lost in epsilon nothing is gained.
    while short(high) and high < ceiling and surprise > 0.1 * precision * _cumulants(sketches, high)[0]:
        low, high = high, high * 4
    for _ in range(16):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if short(middle) else (low, middle)
    gain = math.log1p(high) + high * math.log1p(1 / high)
    return high, max(0.0, (_cumulants(sketches, high)[0] + surprise - gain) / high)


def _tilt_for_mean(mean: float, sketches: Sequence[CoarseLoss], most: float) -> float:
    """The tilt, ``most`` at most, that moves the composed loss's mean to ``mean``.

    Where far, rare losses rule the moments, ``most`` puts all mass there, far above an epsilon that is known.
    """
    low, high = most * 1e-4, most
    for _ in range(24):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _cumulants(sketches, middle)[1] < mean else (low, middle)
    return high


def _edge(sketches: Sequence[CoarseLoss], tilt: float, side: float) -> float:
    """A loss beyond which the tilted, composed loss has mass below exp(-NEGLIGIBLE), by the best Chernoff bound."""
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
    """A rough discrete copy of a pair's loss: log masses and losses; guides choices, carries no bound."""

    log_p: Array
    loss: Array
    count: int

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Log E exp(tilt * loss) with its first two derivatives, ``count`` times."""
        exponent = self.log_p + tilt * self.loss
        top = float(exponent.max())
        weight = np.exp(exponent - top)
        total = float(weight.sum())
        mean = float(weight @ self.loss) / total
        apart = self.loss - mean
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(apart, apart, out=apart)
            variance = float(weight @ apart) / total
        return self.count * (top + math.log(total)), self.count * mean, self.count * variance

    def below(self, cap: float) -> CoarseLoss:
        """Without the losses above ``cap``, unless that were all."""
        kept = self.loss <= cap
        return CoarseLoss(self.log_p[kept], self.loss[kept], self.count) if kept.any() else self

    def bulk(self) -> float:
        """The scale of most losses: the deviation, with far ones counted as one."""
        weight = np.exp(self.log_p)
        mean = float(np.sum(weight * np.clip(self.loss, -1, 1)))
        return max(math.sqrt(float(np.sum(weight * np.clip(self.loss - mean, -1, 1) ** 2))), 1e-12)


def sketch_edges(step: RepeatedPair, log_tail: float) -> Array:
    """Rising losses that trace ``step`` down to tails of exp(``log_tail``)."""
    return step.pair.sketch(_SKETCH, log_tail)


def sketch_of(step: RepeatedPair, log_tail: float) -> CoarseLoss:
    """A rough copy of ``step`` that traces it down to tails of exp(``log_tail``).

    Raises ValueError where floats cannot hold its losses.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        edges = sketch_edges(step, log_tail)
        log_p, log_q = step.pair.cells(edges)
        # A cell's own log ratio; the cells at the ends have only one finite edge, which does as well.
        loss = log_p - log_q
    finite = np.isfinite(loss) & np.isfinite(log_p)
    if not finite.any():
        raise ValueError(BEYOND_FLOATS)
    return CoarseLoss(log_p[finite], loss[finite], step.count)
