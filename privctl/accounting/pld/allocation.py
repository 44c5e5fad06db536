"""One pass of balls-and-bins batches: each record takes part in one of ``bins`` steps, chosen for it alone.

Without the record a pass releases noise x ~ N(0, sigma^2 I); with it, noise around one unit vector, drawn uniformly.
These two laws dominate every adaptive pass with clipped contributions (Chua et al. 2025, "Balls-and-Bins Sampling for
DP-SGD"; Feldman and Shenfeld 2025, "Privacy Amplification by Random Allocation"). Their likelihood ratio is a mean of
independent lognormals,

    A = 1/bins sum_i Z_i,    Z_i = exp(x_i / sigma^2 - 1 / (2 sigma^2)),    E Z_i = 1,

so the pair is known once the law of A without the record is. Deltas of both orders are means of convex functions of A.
Hence a law above A's in the convex order bounds them from above, and one below from below; and the order survives
adding independent numbers (Shaked and Shanthikumar 2007, theorem 3.A.12). So the sum is built by doubling, each time
put on a few thousand values: spread onto the two neighbouring ones with the mean kept (above), or joined at their mean
(below). No sample is drawn, and both errors are of second order in the spacing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from privctl.accounting.pld.pairs import BEYOND_FLOATS, Array, Span, log_normal_cells

#: Values on which a law is held, and cells of the fine mesh from which they are chosen.
_VALUES, _MESH = 1600, 1 << 18
#: Probability at each end that is spread outwards without finer cells, of one lognormal and of every sum.
_REACH, _TAIL = 14.0, 1e-42
#: Logarithm of a lognormal's largest value, which leaves room for sums of as many as there are steps.
_LARGEST = 650.0
#: Rows of a table of sums that are made at once.
_ROWS = 512
#: Relative error of a probability by rounding, with room: no bin of a doubling adds more than a million terms.
_ROUNDING = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class RatioLaw:
    """A law of a likelihood ratio, or of a sum of them, without the record.

    ``values`` rise [values]; ``masses`` are their probabilities [values]. ``zero`` is the probability of 0, and
    ``infinite`` the part of the mean that lies at infinity.
    """

    values: Array
    masses: Array
    zero: float = 0.0
    infinite: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """A pass of ``bins`` steps at noise multiplier ``noise``, of which the first ``steps`` are taken.

    ``lower`` asks for a law below, ``absent`` for the pair without the record against with it.
    """

    noise: float
    bins: int
    steps: int
    lower: bool = False
    absent: bool = False

    def reversed(self) -> Allocation:
        """The pair in the other order."""
        return replace(self, absent=not self.absent)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        losses, p, q, p_infinite, q_infinite = self._atoms()
        at = np.searchsorted(edges, losses)
        below, above = (np.bincount(at, mass, len(edges) + 1) for mass in (p, q))
        below[-1] += p_infinite
        above[0] += q_infinite
        # What rounding may hide counts for the side that is asked for.
        excess = -_ROUNDING if self.lower else _ROUNDING
        with np.errstate(divide="ignore"):
            return np.log(below) + excess, np.log(above)

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        losses, p, q, _, _ = self._atoms()
        tail = math.exp(log_tail)
        ends = [_between(losses, mass, tail) for mass in (p, q)]
        return Span(*ends[0], *ends[1])

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        losses, p, q, _, _ = self._atoms()
        tail = math.exp(log_tail)
        low, high = _between(losses, p + q, tail)
        inside = losses[(losses >= low) & (losses <= high)]
        middles = (inside[:-1] + inside[1:]) / 2
        kept = middles[:: max(1, len(middles) // count)]
        return np.unique(np.concatenate([[low - 1e-9], kept, [high + 1e-9]]))

    def _atoms(self) -> tuple[Array, Array, Array, float, float]:
        """Rising finite losses, their probabilities under P and Q, P's at infinite loss, and Q's at minus infinity."""
        law = ratio_law(self.noise, self.bins, self.steps, self.lower)
        losses, present = np.log(law.values), law.values * law.masses
        if not self.absent:
            return losses, present, law.masses, law.infinite, law.zero
        return -losses[::-1], law.masses[::-1], present[::-1], law.zero, law.infinite


def _between(losses: Array, masses: Array, tail: float) -> tuple[float, float]:
    """Losses below and above which lies at most ``tail``."""
    below, above = np.cumsum(masses), np.cumsum(masses[::-1])
    last = len(losses) - 1
    low = min(int(np.searchsorted(below, tail)), last)
    high = last - min(int(np.searchsorted(above, tail)), last)
    return float(losses[min(low, high)]), float(losses[max(low, high)])


@lru_cache(maxsize=32)
def ratio_law(noise: float, bins: int, steps: int, lower: bool) -> RatioLaw:
    """The law of A where the first ``steps`` of ``bins`` are taken: above in the convex order, or below it."""
    power, total, left = _lognormal(noise, lower), None, steps
    while True:
        if left & 1:
            total = power if total is None else _sum(total, power, lower)
        left >>= 1
        if not left:
            break
        power = _sum(power, power, lower)
    assert total is not None
    idle = (bins - steps) / bins
    values, masses, zero = total.values / bins + idle, total.masses, total.zero
    if idle and zero:
        values, masses, zero = np.append(idle, values), np.append(zero, masses), 0.0
    return RatioLaw(values=values, masses=masses, zero=zero, infinite=total.infinite / bins)


def _lognormal(noise: float, lower: bool) -> RatioLaw:
    """The law of one Z. Raises ValueError where floats cannot hold its values."""
    shift = 1 / noise
    if _REACH * shift + shift * shift / 2 > _LARGEST:
        raise ValueError(BEYOND_FLOATS)
    marks = np.linspace(-_REACH, _REACH + shift, 4 * _VALUES)
    without, with_record = (np.exp(log_normal_cells(marks - moved)) for moved in (0.0, shift))
    return _on_values(np.exp(shift * marks - shift * shift / 2), without, with_record, 0.0, lower)


def _sum(first: RatioLaw, second: RatioLaw, lower: bool) -> RatioLaw:
    """The law of the sum of independent numbers of both laws, on as few values as they have."""
    if first.zero or second.zero:
        first, second = _with_zero(first), _with_zero(second)
    least = max(first.values[0], second.values[0], first.values[first.values > 0][0] / 2)
    marks = np.geomspace(least * (1 - 1e-12), (first.values[-1] + second.values[-1]) * (1 + 1e-12), _MESH)
    per_log, start = (_MESH - 1) / math.log(marks[-1] / marks[0]), math.log(marks[0])
    mass, moment = np.zeros((2, _MESH + 1))
    for row in range(0, len(first.values), _ROWS):
        sums = (first.values[row : row + _ROWS, None] + second.values).ravel()
        masses = (first.masses[row : row + _ROWS, None] * second.masses).ravel()
        with np.errstate(divide="ignore"):
            at = np.ceil(np.clip((np.log(sums) - start) * per_log, 0, _MESH)).astype(np.intp)
        mass += np.bincount(at, masses, _MESH + 1)
        moment += np.bincount(at, masses * sums, _MESH + 1)
    return _on_values(marks, mass, moment, first.infinite + second.infinite, lower)


def _with_zero(law: RatioLaw) -> RatioLaw:
    """The same law with 0 among its values."""
    return RatioLaw(values=np.append(0.0, law.values), masses=np.append(law.zero, law.masses), infinite=law.infinite)


def _on_values(marks: Array, mass: Array, moment: Array, infinite: float, lower: bool) -> RatioLaw:
    """A law on few values from the probabilities and the means of its cells (0, m0], (m0, m1], ..., (mn, inf)."""
    at = _chosen(marks, mass, moment)
    starts = np.concatenate([[0], at + 1])
    mass, moment = np.add.reduceat(mass, starts), np.add.reduceat(moment, starts)
    if lower:
        some = mass > 0
        return RatioLaw(values=moment[some] / mass[some], masses=mass[some])
    values = marks[at]
    # Of a cell between two values, the probability that goes up; below the first value down is 0, above the last all
    # stays, and what the mean lacks lies at infinity.
    low, high = np.append(0.0, values[:-1]), values
    up = np.clip((moment[:-1] - low * mass[:-1]) / (high - low), 0.0, mass[:-1])
    masses = up + np.append((mass[:-1] - up)[1:], mass[-1])
    beyond = max(0.0, float(moment[-1] - values[-1] * mass[-1]))
    return RatioLaw(values=values, masses=masses, zero=float(mass[0] - up[0]), infinite=infinite + beyond)


def _chosen(marks: Array, mass: Array, moment: Array) -> Array:
    """Positions of the values to keep: closest where most of the law lies with the record or without it.

    Spreading a cell of probability m and width w costs m w^2, which is least in all for w like m^(-1/3) a unit; the
    flatter powers keep far tails sharp.
    """
    share = mass / mass.sum() + moment / max(float(moment.sum()), 1e-300)
    below, above = np.cumsum(share), np.cumsum(share[::-1])[::-1]
    first = max(0, int(np.searchsorted(below, _TAIL)) - 1)
    last = min(len(marks) - 1, len(share) - int(np.searchsorted(above[::-1], _TAIL)))
    inner = share[first + 1 : last + 1]
    density = sum(
        weight * inner**power / max(float((inner**power).sum()), 1e-300)
        for weight, power in ((0.3, 1 / 3), (0.5, 1 / 6), (0.2, 0.0))
    )
    wanted = np.linspace(0, 1, _VALUES)
    places = first + np.searchsorted(np.append(0.0, np.cumsum(density)) / float(np.sum(density)), wanted * (1 - 1e-12))
    return np.unique(np.clip(places, first, last))
