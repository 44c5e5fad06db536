"""One pass of balls-and-bins batches: each record takes part in one of ``bins`` steps, chosen independently.

Without the record a pass releases noise x ~ N(0, sigma^2 I); with it, noise around one unit vector, drawn uniformly.
These two distributions dominate every adaptive pass with clipped contributions (Chua et al. 2025, "Balls-and-Bins
Sampling for DP-SGD"; Feldman and Shenfeld 2025, "Privacy Amplification by Random Allocation"). Their likelihood ratio
is a mean of independent lognormals,

    A = 1/bins sum_i Z_i,    Z_i = exp(x_i / sigma^2 - 1 / (2 sigma^2)),    E Z_i = 1,

so the pair is determined by the distribution of A without the record. Deltas of both orders are means of convex
functions of A. Hence a distribution above that of A in the convex order gives upper bounds, and one below gives lower
bounds; and adding independent variables preserves the order (Shaked and Shanthikumar 2007, theorem 3.A.12). So the sum
is built by doubling and discretised each time to a few thousand values: mass is spread to the two neighbouring values,
keeping the mean (above), or merged at its mean (below). Nothing is sampled, and both errors are of second order in the
spacing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from privctl.accounting.pld.pairs import BEYOND_FLOATS, Array, Span, log_normal_cells

#: Number of values of a discretised distribution, and of cells in the fine mesh from which they are chosen.
_VALUES, _MESH = 1600, 1 << 18
#: How many standard deviations of a lognormal are divided into cells, and the tail probability of sums that is not.
_REACH, _TAIL = 14.0, 1e-42
#: Logarithm of the largest value of a lognormal, such that sums over all steps do not overflow.
_LARGEST = 650.0
#: Rows of the table of sums computed at a time.
_ROWS = 512
#: Generous bound on the relative rounding error of a probability: no bin of a doubling adds more than a million terms.
_ROUNDING = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class RatioLaw:
    """The discretised distribution, without the record, of a likelihood ratio or of a sum of them.

    ``values`` [values] increase; ``masses`` [values] are their probabilities. ``zero`` is the probability of 0, and
    ``infinite`` the part of the mean that is at infinity.
    """

    values: Array
    masses: Array
    zero: float = 0.0
    infinite: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """A pass of ``bins`` steps at noise multiplier ``noise``, of which the first ``steps`` are taken.

    ``lower`` selects the distribution for lower bounds, ``absent`` the pair without the record against with it.
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
        positions = np.searchsorted(edges, losses)
        below, above = (np.bincount(positions, mass, len(edges) + 1) for mass in (p, q))
        below[-1] += p_infinite
        above[0] += q_infinite
        # Rounding errors are added on the safe side.
        excess = -_ROUNDING if self.lower else _ROUNDING
        with np.errstate(divide="ignore"):
            return np.log(below) + excess, np.log(above)

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        losses, p, q, _, _ = self._atoms()
        tail = math.exp(log_tail)
        ends = [_quantiles(losses, mass, tail) for mass in (p, q)]
        return Span(*ends[0], *ends[1])

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        losses, p, q, _, _ = self._atoms()
        tail = math.exp(log_tail)
        low, high = _quantiles(losses, p + q, tail)
        inside = losses[(losses >= low) & (losses <= high)]
        middles = (inside[:-1] + inside[1:]) / 2
        kept = middles[:: max(1, len(middles) // count)]
        return np.unique(np.concatenate([[low - 1e-9], kept, [high + 1e-9]]))

    def _atoms(self) -> tuple[Array, Array, Array, float, float]:
        """Increasing finite losses, their probabilities under P and Q, and P's at loss inf, Q's at loss -inf."""
        law = ratio_law(self.noise, self.bins, self.steps, self.lower)
        losses, present = np.log(law.values), law.values * law.masses
        if not self.absent:
            return losses, present, law.masses, law.infinite, law.zero
        return -losses[::-1], law.masses[::-1], present[::-1], law.zero, law.infinite


def _quantiles(losses: Array, masses: Array, tail: float) -> tuple[float, float]:
    """Losses below and above which the mass is at most about ``tail``."""
    below, above = np.cumsum(masses), np.cumsum(masses[::-1])
    last = len(losses) - 1
    low = min(int(np.searchsorted(below, tail)), last)
    high = last - min(int(np.searchsorted(above, tail)), last)
    return float(losses[min(low, high)]), float(losses[max(low, high)])


@lru_cache(maxsize=32)
def ratio_law(noise: float, bins: int, steps: int, lower: bool) -> RatioLaw:
    """The distribution of A if the first ``steps`` of ``bins`` are taken: one above in the convex order, or below."""
    power, total, remaining = _lognormal(noise, lower), None, steps
    while True:
        if remaining & 1:
            total = power if total is None else _sum(total, power, lower)
        remaining >>= 1
        if not remaining:
            break
        power = _sum(power, power, lower)
    assert total is not None
    idle = (bins - steps) / bins
    values, masses, zero = total.values / bins + idle, total.masses, total.zero
    if idle and zero:
        values, masses, zero = np.append(idle, values), np.append(zero, masses), 0.0
    return RatioLaw(values=values, masses=masses, zero=zero, infinite=total.infinite / bins)


def _lognormal(noise: float, lower: bool) -> RatioLaw:
    """The distribution of one Z. Raises ValueError if its values overflow."""
    shift = 1 / noise
    if _REACH * shift + shift * shift / 2 > _LARGEST:
        raise ValueError(BEYOND_FLOATS)
    marks = np.linspace(-_REACH, _REACH + shift, 4 * _VALUES)
    without, with_record = (np.exp(log_normal_cells(marks - moved)) for moved in (0.0, shift))
    return _discretised(np.exp(shift * marks - shift * shift / 2), without, with_record, 0.0, lower)


def _sum(first: RatioLaw, second: RatioLaw, lower: bool) -> RatioLaw:
    """The distribution of the sum of two independent variables, on no more than ``_VALUES`` values."""
    if first.zero or second.zero:
        first, second = _with_zero(first), _with_zero(second)
    least = max(first.values[0], second.values[0], first.values[first.values > 0][0] / 2)
    marks = np.geomspace(least * (1 - 1e-12), (first.values[-1] + second.values[-1]) * (1 + 1e-12), _MESH)
    start = math.log(marks[0])
    per_log = (_MESH - 1) / (math.log(marks[-1]) - start)  # the quotient of the marks may overflow
    mass, moment = np.zeros((2, _MESH + 1))
    for row in range(0, len(first.values), _ROWS):
        sums = (first.values[row : row + _ROWS, None] + second.values).ravel()
        masses = (first.masses[row : row + _ROWS, None] * second.masses).ravel()
        with np.errstate(divide="ignore"):
            cells = np.ceil(np.clip((np.log(sums) - start) * per_log, 0, _MESH)).astype(np.intp)
        mass += np.bincount(cells, masses, _MESH + 1)
        moment += np.bincount(cells, masses * sums, _MESH + 1)
    return _discretised(marks, mass, moment, first.infinite + second.infinite, lower)


def _with_zero(law: RatioLaw) -> RatioLaw:
    """The same distribution with 0 among its values."""
    return RatioLaw(values=np.append(0.0, law.values), masses=np.append(law.zero, law.masses), infinite=law.infinite)


def _discretised(marks: Array, mass: Array, moment: Array, infinite: float, lower: bool) -> RatioLaw:
    """A distribution on few values, from the masses and first moments of cells (0, m0], (m0, m1], ..., (mn, inf)."""
    kept = _kept_positions(marks, mass, moment)
    starts = np.concatenate([[0], kept + 1])
    mass, moment = np.add.reduceat(mass, starts), np.add.reduceat(moment, starts)
    if lower:
        has_mass = mass > 0
        return RatioLaw(values=moment[has_mass] / mass[has_mass], masses=mass[has_mass])
    values = marks[kept]
    # The mass of each cell that goes to its upper value. Below the first value the lower one is 0; above the last, all
    # mass goes to the last value, and the missing part of the mean is put at infinity.
    low, high = np.append(0.0, values[:-1]), values
    up = np.clip((moment[:-1] - low * mass[:-1]) / (high - low), 0.0, mass[:-1])
    masses = up + np.append((mass[:-1] - up)[1:], mass[-1])
    beyond = max(0.0, float(moment[-1] - values[-1] * mass[-1]))
    return RatioLaw(values=values, masses=masses, zero=float(mass[0] - up[0]), infinite=infinite + beyond)


def _kept_positions(marks: Array, mass: Array, moment: Array) -> Array:
    """Positions of the values to keep: densest where most of the mass is, with the record or without it.

    Spreading a cell of mass m and width w costs m w^2, whose total is smallest if w is proportional to the density to
    the power -1/3; the smaller exponents keep far tails accurate.
    """
    weights = mass / mass.sum() + moment / max(float(moment.sum()), 1e-300)
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])[::-1]
    first = max(0, int(np.searchsorted(below, _TAIL)) - 1)
    last = min(len(marks) - 1, len(weights) - int(np.searchsorted(above[::-1], _TAIL)))
    inner = weights[first + 1 : last + 1]
    density = sum(
        weight * inner**power / max(float((inner**power).sum()), 1e-300)
        for weight, power in ((0.3, 1 / 3), (0.5, 1 / 6), (0.2, 0.0))
    )
    wanted = np.linspace(0, 1, _VALUES)
    positions = first + np.searchsorted(
        np.append(0.0, np.cumsum(density)) / float(np.sum(density)), wanted * (1 - 1e-12)
    )
    return np.unique(np.clip(positions, first, last))
