"""The grid for bounding a composition, chosen from coarse cells. A poor choice makes bounds looser, never wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import next_fast_len

from verify.losses.cells import Floats, LossCells

#: Log of the mass under the tilted distribution that may wrap around the grid or lie beyond it.
WRAPPED = -38.0
#: A step's loss this far above all relevant losses counts as infinite.
_DECISIVE = 18.0
#: Logs of a negligible mass: relative to delta, and for whole curves.
_IRRELEVANT, _BULK = 20.0, -14.0
#: If the Chernoff bound lies below log delta by this much, no better tilt is looked for.
_FAR_BELOW = 15.0
LARGEST_GRID = 1 << 22
#: Exponents tried in Chernoff bounds, down to those for losses in the billions, as with next to no noise; and those for
#: the ends of the grid as fractions of the largest.
_TILTS, _PUSHES = np.geomspace(1e-9, 1e5, 169), np.geomspace(1e-10, 1, 101)
#: A generous relative bound on rounding errors.
_ROUNDED = 1e-9

#: The cells of each kind of step, and how often it occurs.
Kinds = Sequence[tuple[LossCells, int]]


@dataclass(frozen=True, slots=True)
class ComposeGrid:
    """Points (first + i) * ``width`` for i < ``count``, taken modulo ``count``; ``tilt`` is the tilting exponent.

    A step's loss above ``cap`` counts as infinite in upper bounds and as ``cap`` in lower ones. Cells must extend to
    ``reach`` on either side. ``pushes`` are exponents for the Chernoff bounds on the mass above and below the grid.
    """

    width: float
    first: int
    count: int
    tilt: float
    cap: float = math.inf
    reach: float = math.inf
    pushes: tuple[float, float] = (1.0, 1.0)

    @property
    def losses(self) -> Floats:
        """The points, shape (count,)."""
        return (self.first + np.arange(self.count, dtype=np.float64)) * self.width

    def wider(self, factor: float) -> ComposeGrid:
        """A grid over the same range with ``factor`` times the spacing."""
        low, high, width = self.first * self.width, (self.first + self.count) * self.width, self.width * factor
        count = next_fast_len(math.ceil((high - low) / width) + 16, real=True)
        return replace(self, width=width, first=math.floor(low / width) - 4, count=count)


def logsum(values: Floats) -> float:
    """Log of the sum of exp(values)."""
    top = float(values.max())
    if math.isinf(top):
        return top
    return top + math.log(float(np.exp(values - top).sum()))


def make_grid(sketch: Kinds, log_delta: float | None, precision: float, estimate: float | None = None) -> ComposeGrid:
    """The grid for a composition, chosen from the coarse cells ``sketch``.

    It is sharpest near ``log_delta``, or in the bulk if that is None. ``estimate`` approximates the epsilon there, if
    known. ``precision`` is about the relative error in epsilon that the grid may cause. Raises ValueError if the losses
    of a step exceed the range of floats.
    """
    parts = [(0.5 * (c.low + c.high)[c.p > 0], np.log(c.p[c.p > 0]), times) for c, times in sketch]
    if not all(len(losses) for losses, _, _ in parts):
        raise ValueError("the losses of a step are so large that floats cannot hold them")
    steps = sum(times for _, _, times in parts)
    tilt, epsilon, reach = 0.0, 0.0, math.inf
    cap = _farthest_loss(sketch, (_BULK if log_delta is None else log_delta) - _IRRELEVANT - math.log(steps))
    if log_delta is not None:
        tilt, epsilon = _saddle(parts, log_delta)
        kept = [(losses <= cap, losses, logs, times) for losses, logs, times in parts]
        parts = [(losses[k], logs[k], times) for k, losses, logs, times in kept if k.any()] or parts
        tilt, epsilon = _saddle(parts, log_delta)
        reach = epsilon - min(0.0, _edge(parts, tilt, -1.0)[0]) + _DECISIVE
        cap = min(cap, reach)
        kept = [(losses <= cap, losses, logs, times) for losses, logs, times in parts]
        parts = [(losses[k], logs[k], times) for k, losses, logs, times in kept if k.any()] or parts
        tilt, epsilon = (
            _saddle(parts, log_delta) if estimate is None else (_tilt_at(parts, estimate, log_delta), estimate)
        )
    deviation = _moments(parts, tilt)[1]
    scale = max(epsilon, deviation / 30) if log_delta is not None else deviation
    width = min(math.sqrt(6 * precision * scale / (steps * (1 + tilt))), deviation / 20)
    if log_delta is None:
        # Rounding to the grid must add as small a relative error to the variance, however small the variance is.
        width = min(width, deviation * math.sqrt(6 * precision / steps))
    width = max(width, precision * scale / steps)  # rounding moves no step's loss by more than the spacing
    (low, pull), (high, push) = (_edge(parts, tilt, sign, 100 / deviation) for sign in (-1.0, 1.0))
    low, high = low - 8 * width, high + 8 * width
    count = next_fast_len(math.ceil((high - low) / width) + 16, real=True)
    if count > LARGEST_GRID:
        width, count = width * count / LARGEST_GRID * 1.001, LARGEST_GRID
    return ComposeGrid(width=width, first=math.floor(low / width) - 4, count=count, tilt=tilt, cap=cap, reach=reach,
                pushes=(push, pull))  # fmt: skip


def _farthest_loss(sketch: Kinds, log_mass: float) -> float:
    """A loss above which a step of each kind has mass less than exp(``log_mass``) under P, so that it may be capped.

    Otherwise tilting would move the whole distribution to a tiny mass at extreme losses.
    """
    farthest = -math.inf
    for cells, _ in sketch:
        above = np.cumsum(cells.p[::-1])[::-1]
        farthest = max(farthest, float(cells.high[above > math.exp(log_mass)].max(initial=-math.inf)))
    return farthest if math.isfinite(farthest) else math.inf


_Parts = Sequence[tuple[Floats, Floats, int]]


def _cumulant(parts: _Parts, tilt: float) -> float:
    return sum(times * logsum(logs + tilt * losses) for losses, logs, times in parts)


def _moments(parts: _Parts, tilt: float) -> tuple[float, float]:
    """The mean and standard deviation of the sum under the tilted distribution."""
    mean = variance = 0.0
    for losses, logs, times in parts:
        share = np.exp(logs + tilt * losses - logsum(logs + tilt * losses))
        middle = float(share @ losses)
        mean += times * middle
        variance += times * float(share @ (losses - middle) ** 2)
    return mean, max(math.sqrt(variance), 1e-9)


def _saddle(parts: _Parts, log_delta: float) -> tuple[float, float]:
    """The tilt at which the Chernoff bound on the tail equals delta at the least epsilon, and that epsilon."""
    bound, tilt = _least(((_cumulant(parts, tilt) - log_delta) / tilt, float(tilt)) for tilt in _TILTS)
    return tilt, max(bound, 0.0)


def _tilt_at(parts: _Parts, epsilon: float, log_delta: float) -> float:
    """The tilt that minimizes the Chernoff bound on the tail above ``epsilon``, or makes it far smaller than delta."""
    best = (math.inf, 0.0)
    for tilt in _TILTS:
        best = min(best, (_cumulant(parts, tilt) - tilt * epsilon, float(tilt)))
        if best[0] < log_delta - _FAR_BELOW:
            break
    return best[1]


def _edge(parts: _Parts, tilt: float, sign: float, most: float = 1e6) -> tuple[float, float]:
    """How far the tilted sum reaches by a Chernoff bound, and the bound's exponent, which is at most ``most``."""
    norm, pushes = _cumulant(parts, tilt), most * _PUSHES[::-1]
    bound, push = _least(
        ((_cumulant(parts, tilt + sign * push) - norm - WRAPPED) / push, float(push)) for push in pushes
    )
    return sign * bound, push


def _least(bounds: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The least of the Chernoff ``bounds``, given with their exponents; the iteration stops once they rise.

    The bounds fall and then rise, because the exponents whose bound is at most a given value form an interval: that
    where the cumulant generating function, which is convex, lies below a line.
    """
    best = next(computed := iter(bounds))
    for point in computed:
        if point[0] > best[0] + _ROUNDED * abs(best[0]):
            break
        best = min(best, point)
    return best
