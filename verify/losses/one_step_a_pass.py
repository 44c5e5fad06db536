"""Passes in which each record takes part in one step, drawn uniformly and independently: the loss of one pass.

The likelihood ratio with and without the record is the mean over the steps of exp(x_i / s^2 - 1 / (2 s^2)), where x_i
is the noise of step i with standard deviation s. Without the record, these terms are independent with mean 1. A
distribution is stored as masses on points. Moving each mass to its two neighbouring points with the mean preserved can
only increase the expectation of a convex function of the sum, and so any delta in either order. Replacing all mass in a
cell by its mean can only decrease it (Jensen). The true value lies between the two.

Points are chosen from a coarse version of the distribution with a few hundred points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from verify.losses.cells import Floats, LossCells, normal_masses

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of points for rough and for fine cells, and for a coarse distribution.
ROUGH, FINE = 600, 2200
_FEW = 250
#: Scores beyond this are negligible, with a probability of 3e-45.
_REACH = 14.0
#: Less mass than this lies beyond the points on either side.
_LEAST = 1e-44
#: The number of marks of the scale on which points lie, and of bars in the histogram by which they are chosen.
_MARKS, _BARS = 1 << 18, 1500
#: The density of points is a mixture of powers of the histogram: (weight, power).
_SHARES = ((0.4, 0.3), (0.4, 0.14), (0.2, 0.0))
#: A bound on the relative rounding error of a mass: sums of at most a million positive terms, nested twenty times.
ERROR = 1e-9
#: The number of sums processed at a time.
_AT_ONCE = 1 << 19


@dataclass(frozen=True, slots=True, eq=False)
class PointLaw:
    """``masses`` at increasing ``points``, both (points,), possibly with 0; ``far`` is the mean moved to infinity."""

    points: Floats
    masses: Floats
    far: float = 0.0


def pass_cells(noise_multiplier: float, batches: int, steps: int, count: int, *, above: bool) -> LossCells:
    """Cells of a pass of which only ``steps`` of its ``batches`` steps are taken, for bounds from above or below.

    Raises OverflowError if there is so little noise that likelihood ratios overflow.
    """
    law = _mean_of_terms(noise_multiplier, batches, steps, count, above)
    seen = law.points > 0
    losses, q = np.log(law.points[seen]), law.masses[seen]
    p = law.points[seen] * q
    return LossCells(
        low=losses, high=losses, p=p, q=q, up=np.zeros_like(p), p_infinite=law.far,
        q_infinite=float(law.masses[~seen].sum()), error=ERROR,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _mean_of_terms(noise: float, batches: int, steps: int, count: int, above: bool) -> PointLaw:
    if (_REACH + 1 / noise) ** 2 / 2 > 700 * max(noise, 1) or noise < 0.05:
        raise OverflowError(f"noise of {noise:g} clip norms is too little for this bound")
    term = _one_term(noise, count, above)
    total = term
    for digit in bin(steps)[3:]:
        total = _sum(total, total, count, above)
        if digit == "1":
            total = _sum(total, term, count, above)
    missed = (batches - steps) / batches
    return PointLaw(points=total.points / batches + missed, masses=total.masses, far=total.far / batches)


def _one_term(noise: float, count: int, above: bool) -> PointLaw:
    scores = np.linspace(-_REACH, _REACH + 1 / noise, 3 * count)
    without, present = (normal_masses(scores - moved) for moved in (0.0, 1 / noise))
    return _placed(np.exp(scores / noise - 0.5 / noise**2), without, present, 0.0, above)


def _sum(one: PointLaw, other: PointLaw, count: int, above: bool) -> PointLaw:
    ruler = _ruler(one, other, count)
    masses, moments = np.zeros((2, len(ruler.points) + 1))
    rows = max(1, _AT_ONCE // len(other.points))
    for start in range(0, len(one.points), rows):
        block = slice(start, start + rows)
        sums = np.add.outer(one.points[block], other.points).ravel()
        weights = np.multiply.outer(one.masses[block], other.masses).ravel()
        cells = ruler.cells(sums)
        masses += np.bincount(cells, weights, len(ruler.points) + 1)
        moments += np.bincount(cells, weights * sums, len(ruler.points) + 1)
    return _placed(ruler.points, masses, moments, one.far + other.far, above)


@dataclass(frozen=True, slots=True, eq=False)
class Ruler:
    """Points among the marks of a fine logarithmic scale, with a table from marks to the cells between points."""

    first: float
    per_log: float
    cell: NDArray[np.intp]
    points: Floats

    def cells(self, sums: Floats) -> NDArray[np.intp]:
        """The index of the cell between points that contains each of ``sums``."""
        with np.errstate(divide="ignore"):
            mark = (np.log(sums) - self.first) * self.per_log
        return np.asarray(self.cell[np.clip(np.floor(mark), -1, len(self.cell) - 2).astype(np.int64) + 1])


def _placed(points: Floats, masses: Floats, moments: Floats, far: float, above: bool) -> PointLaw:
    """The distribution on ``points``, from the masses and first moments of the cells below, between and above them."""
    if not above:
        occupied = masses > 0
        return PointLaw(points=moments[occupied] / masses[occupied], masses=masses[occupied])
    ends = np.append(0.0, points)
    # Splits the mass between ends[i] and ends[i + 1]. Mass above the last end stays there and its excess mean is "far".
    share = np.clip((moments[:-1] - ends[:-1] * masses[:-1]) / np.diff(ends), 0.0, masses[:-1])
    placed = np.append(masses[:-1] - share, masses[-1])
    placed[1:] += share
    return PointLaw(points=ends, masses=placed, far=far + max(0.0, float(moments[-1] - ends[-1] * masses[-1])))


def _ruler(one: PointLaw, other: PointLaw, count: int) -> Ruler:
    """Points for the sum: dense where there is much mass with or without the record, and nowhere too sparse."""
    (a, p), (b, q) = (_rough(law) for law in (one, other))
    sums, weights = np.add.outer(a, b).ravel(), np.multiply.outer(p, q).ravel()
    weights = (weights * (1 + sums / float(weights @ sums)))[sums > 0]
    logs = np.log(sums[sums > 0])
    order = np.argsort(logs)
    logs, total = logs[order], np.cumsum(weights[order])
    rest = np.cumsum(weights[order][::-1])[::-1]
    low, high = logs[np.searchsorted(total, _LEAST)], logs[len(logs) - 1 - np.searchsorted(rest[::-1], _LEAST)]
    marks = np.linspace(low, high, _MARKS)
    bars = np.histogram(logs, _BARS, (low, high), weights=weights[order])[0]
    dense = sum(part * bars**power / float((bars**power).sum()) for part, power in _SHARES)
    reached = np.interp(marks, np.linspace(low, high, _BARS + 1), np.append(0.0, np.cumsum(dense)))
    chosen = np.unique(np.searchsorted(reached, np.linspace(0, float(reached[-1]), count), side="left"))
    chosen = np.unique(np.clip(chosen, 0, _MARKS - 1))
    # Entry k of the table is for sums between marks k - 1 and k.
    cell = np.searchsorted(chosen, np.arange(_MARKS + 1))
    return Ruler(first=float(low), per_log=(_MARKS - 1) / float(high - low), cell=cell, points=np.exp(marks[chosen]))


def _rough(law: PointLaw) -> tuple[Floats, Floats]:
    """The points and masses of the distribution, merged to at most a few hundred points."""
    starts = np.arange(0, len(law.points), max(1, -(-len(law.points) // _FEW)))
    masses = np.add.reduceat(law.masses, starts)
    moments = np.add.reduceat(law.masses * law.points, starts)
    occupied = masses > 0
    return moments[occupied] / masses[occupied], masses[occupied]
