"""Composition of many steps: upper and lower bounds on delta at every epsilon that account for every error.

For the upper bound, each cell's mass is moved to its ends, and from there to the points of one grid, so that the masses
of P and Q are both preserved, which can only increase delta ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar and
Manurangsi 2022). For the lower bound, an observer rounds each step's loss to the grid and adds up the results: for
every event, delta >= P(event) - e^epsilon Q(event), with exact probabilities of the event. Both bounds differ from the
true value by the order of the square of the grid spacing.

Distributions are convolved by FFT under exponential tilting, which makes the relevant losses the likely ones, so that
errors are small relative to delta and not only to 1. Normwise errors of the FFT follow Higham (2002, theorem 24.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.fft import irfft, rfft
from scipy.linalg import solve_banded

from verify.losses.cells import Floats, LossCells
from verify.recompute.compose_grid import WRAPPED, ComposeGrid, Kinds, logsum

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Transforms use the longest floats available (64 bits of mantissa on x86, 53 elsewhere).
_LONG = np.longdouble
#: Their unit roundoff times a generous constant for the FFT's butterflies.
_FFT_ERROR = 5 * float(np.finfo(_LONG).eps)
#: The logarithm below which coefficients count as 0.
_NEGLIGIBLE = -100.0
#: Relative rounding error of a sum, per term.
_SUM_ERROR = 2.0**-53
#: A cell's mass below this may be inaccurate, being close to the least float.
_TINY = 1e-290
#: The largest range of grid positions of a step for which sums are stored for every position.
_DENSE = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class ComposedLaw:
    """A composed distribution: ``masses`` (count,) times e^(``log_scale`` - tilt * loss), each within ``error``.

    ``wrapped`` bounds the tilted mass that lies beyond the grid.
    """

    grid: ComposeGrid
    masses: Floats
    log_scale: float
    tilt: float
    error: float
    wrapped: float

    @property
    def rounding(self) -> float:
        """Relative error of a mass times its weight: tilting adds and then subtracts exponents that may be large."""
        ends = max(abs(self.grid.first), abs(self.grid.first + self.grid.count)) * self.grid.width
        return 4 * _SUM_ERROR * (abs(self.log_scale) + (self.tilt + 1) * ends)


def compose_laws(weights: Sequence[tuple[Floats, Floats, int]], grid: ComposeGrid, tilt: float) -> ComposedLaw:
    """The distribution of a sum of independent losses: (grid positions, log masses, count) for each kind of step."""
    spectrum, log_scale = None, 0.0
    error, norms = len(weights) * math.exp(_NEGLIGIBLE), []
    bits = math.log2(grid.count) + 2
    for positions, log_masses, times in weights:
        tilted = log_masses + tilt * positions * grid.width
        top = float(tilted.max())
        total = float(np.exp(tilted - top).sum())
        law = np.bincount((positions.astype(np.int64)) % grid.count, np.exp(tilted - top) / total, minlength=grid.count)
        log_scale += times * (top + math.log(total))
        coefficients = np.asarray(rfft(law.astype(_LONG)), np.clongdouble)
        size = np.abs(coefficients.astype(np.complex128))
        # A relative 2-norm error e of the coefficients becomes times * e * |.|^(times - 1) after raising to a power.
        norms.append((times, float(np.linalg.norm(law)), size))
        powered = _power(coefficients, size, times)
        spectrum = powered if spectrum is None else spectrum * powered
    assert spectrum is not None
    whole = np.abs(spectrum.astype(np.complex128))
    for times, norm, size in norms:
        with np.errstate(divide="ignore", invalid="ignore"):
            others = np.where(size > 0, whole / size, 0.0)
        # Cauchy-Schwarz over the coefficients; rfft keeps half of them.
        error += times * _FFT_ERROR * bits * norm * math.sqrt(2 * float(np.dot(others, others)) / grid.count)
    masses = irfft(spectrum, grid.count)
    masses = np.maximum(np.roll(masses, -(grid.first % grid.count)), 0.0).astype(np.float64)
    error += _FFT_ERROR * bits * float(np.linalg.norm(masses))
    beyond = min(1.0, _mass_beyond(weights, grid, tilt))
    return ComposedLaw(
        grid=grid, masses=np.asarray(masses, np.float64), log_scale=log_scale, tilt=tilt, error=error, wrapped=beyond
    )


def _power(coefficients: NDArray[np.clongdouble], size: Floats, times: int) -> NDArray[np.clongdouble]:
    """The coefficients to the power ``times``, with negligible ones set to 0 and angles reduced modulo a full turn."""
    with np.errstate(divide="ignore"):
        kept = np.flatnonzero(times * np.log(size) > _NEGLIGIBLE)
    base = coefficients[kept]
    length, turn = np.exp(times * np.log(np.abs(base))), 2 * np.arctan2(_LONG(0), _LONG(-1))
    angle = turn * np.remainder(np.angle(base) / turn * times, _LONG(1))
    powers = np.zeros_like(coefficients)
    powers[kept] = length * np.cos(angle) + 1j * (length * np.sin(angle))
    return powers


def _mass_beyond(weights: Sequence[tuple[Floats, Floats, int]], grid: ComposeGrid, tilt: float) -> float:
    """A bound on the tilted mass outside the grid: a Chernoff bound plus the mass of runs with an extreme loss."""
    everything = [(at * grid.width, logs + tilt * at * grid.width, times) for at, logs, times in weights]
    totals = [logsum(logs) for _, logs, _ in everything]
    total = 0.0
    ends = ((grid.first + grid.count) * grid.width, 1.0), (-grid.first * grid.width, -1.0)
    for (edge, sign), usual in zip(ends, grid.pushes, strict=True):
        split = [_trimmed(part, norm, sign) for part, norm in zip(everything, totals, strict=True)]
        total += sum(mass for _, mass in split)
        parts = [part for part, _ in split]
        if sum(times * float((sign * losses).max()) for losses, _, times in parts) < edge - grid.width:
            continue
        best = 0.0
        for push in usual * np.array([1, 0.7, 1.5, 0.3, 0.1, 0.01, 1e-3]):
            value = -push * edge + sum(
                times * (logsum(logs + sign * push * losses) - norm)
                for (losses, logs, times), norm in zip(parts, totals, strict=True)
            )
            best = min(best, value)
            if best < WRAPPED + 1:
                break
        total += math.exp(best)
    return total


def _trimmed(part: tuple[Floats, Floats, int], norm: float, sign: float) -> tuple[tuple[Floats, Floats, int], float]:
    """A kind of step without its most extreme losses, and a bound on the mass of runs in which one of them occurs.

    Losses are in increasing order, as cells are merged onto the grid.
    A single extreme loss, however unlikely, would dominate the Chernoff bound: at sampling rate q the least loss is
    log(1 - q), which may be thousands of standard deviations away if there is much noise.
    """
    losses, logs, times = part
    order = slice(None, None, -1 if sign > 0 else 1)
    masses = np.cumsum(np.exp(logs[order] - norm)) * (times * (1 + 1e-9))
    far = int(np.searchsorted(masses, math.exp(WRAPPED - 4)))
    if far == 0 or far == len(losses):
        return part, 0.0
    return (losses[order][far:], logs[order][far:], times), float(masses[far - 1])


@dataclass(frozen=True, slots=True, eq=False)
class UpperDelta:
    """An upper bound on delta at every epsilon.

    ``sums`` holds, for each point, the sum of the untilted masses from there on, and that of the masses times
    e^-(loss - point).
    """

    law: ComposedLaw
    infinite: float
    growth: float
    sums: tuple[Floats, Floats]

    def delta(self, epsilon: float) -> float:
        """The upper bound at any real ``epsilon``."""
        law, grid = self.law, self.law.grid
        start = min(max(math.floor(epsilon / grid.width) - grid.first + 1, 0), grid.count)
        if start == 0:
            return 1.0  # epsilon lies below the grid
        beyond = epsilon - (grid.first + start) * grid.width
        gap = max(0.0, float(self.sums[0][start]) - math.exp(min(beyond, 0.0)) * float(self.sums[1][start]))
        # Errors of the transform at every point above, and the mass above the grid.
        scale = math.exp(min(law.log_scale - law.tilt * epsilon, 700.0))
        points = min(float(grid.count), 1 / -math.expm1(-law.tilt * grid.width)) if law.tilt else float(grid.count)
        cancelled = (2 * _SUM_ERROR * grid.count + law.rounding) * float(self.sums[0][start])
        return min(1.0, (gap + cancelled + scale * (law.error * points + law.wrapped)) * self.growth + self.infinite)


@dataclass(frozen=True, slots=True, eq=False)
class LowerDelta:
    """A lower bound on delta at every epsilon, from the events {sum of rounded losses >= point}.

    ``present`` holds lower bounds on their probabilities with the record, ``log_absent`` the logarithms of upper bounds
    without it, which may be too small for floats.
    """

    grid: ComposeGrid
    present: Floats
    log_absent: Floats

    @property
    def absent(self) -> Floats:
        """The upper bounds on the probabilities without the record; those too small for floats are 0."""
        with np.errstate(under="ignore"):
            return np.exp(self.log_absent)

    def delta(self, epsilon: float) -> float:
        """The lower bound at any real ``epsilon``."""
        return self.event(epsilon)[0]

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at which the lower bound is at most ``delta`` in [0, 1).

        An event needs no more than ``delta`` from epsilon log((present - delta) / absent) on.
        """
        with np.errstate(divide="ignore"):
            most = float((np.log(np.maximum(self.present - delta, 0.0)) - self.log_absent).max())
        return max(most, 0.0)

    def event(self, epsilon: float) -> tuple[float, float, float, float]:
        """The best event's bound on delta, its threshold, and its probabilities with and without the record.

        The last is a logarithm.
        """
        with np.errstate(under="ignore"):
            # Events more likely than e^-epsilon without the record show nothing.
            gains = self.present - np.exp(np.minimum(epsilon + self.log_absent, 1.0))
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            return 0.0, math.inf, 0.0, -math.inf
        threshold = (self.grid.first + best - 0.5) * self.grid.width
        return float(gains[best]), threshold, float(self.present[best]), float(self.log_absent[best])


def _log_event_probabilities(law: ComposedLaw, sign: float, growth: float) -> Floats:
    """Logs of lower (``sign`` -1) or upper (``sign`` 1) bounds on P(sum >= point) for every point; shape (count,)."""
    with np.errstate(under="ignore", divide="ignore"):
        mass = _decaying_sums((law.masses + sign * law.error)[::-1], math.exp(-law.tilt * law.grid.width))[::-1]
        # Tilted mass from beyond the grid may have wrapped to any point, at most with the largest weight of the event.
        mass = mass + sign * law.wrapped
        slack = 4 * _SUM_ERROR * law.grid.count + law.rounding
        change = growth + slack if sign > 0 else 2 - growth - slack
        logs = np.log(np.maximum(mass * change, 0.0)) + (law.log_scale - law.tilt * law.grid.losses)
    return np.asarray(np.minimum(logs, 0.0))


def _untilting_weights(law: ComposedLaw, losses: Floats) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(np.minimum(law.log_scale - law.tilt * losses, 690.0)))


def _growth(kinds: Kinds) -> float:
    """The factor by which errors of the steps' masses may change a delta."""
    return math.exp(2 * sum(times * cells.error for cells, times in kinds))


def bound_above(kinds: Kinds, grid: ComposeGrid) -> UpperDelta:
    """An upper bound on delta for the composition of each kind of step with its multiplicity."""
    placed = [(*_masses_from_above(cells, grid), times) for cells, times in kinds]
    alive = sum(times * (math.log1p(-infinite) if infinite < 1 else -math.inf) for _, _, infinite, times in placed)
    law = compose_laws([(at, logs, times) for at, logs, _, times in placed], grid, grid.tilt)
    with np.errstate(under="ignore"):
        masses = law.masses * _untilting_weights(law, grid.losses)
        tails = np.cumsum(masses[::-1]), _decaying_sums(masses[::-1], math.exp(-grid.width))
    sums = tuple(np.append(part[::-1], 0.0) for part in tails)
    growth = _growth(kinds)
    return UpperDelta(law=law, infinite=-math.expm1(alive), growth=growth, sums=(sums[0], sums[1]))


def _decaying_sums(terms: Floats, factor: float) -> Floats:
    """Sums s[i] = terms[i] + factor * s[i - 1], as the solution of a bidiagonal system."""
    diagonals = np.ones((2, len(terms)))
    diagonals[1] = -factor
    return np.asarray(solve_banded((1, 0), diagonals, terms))


def bound_below(kinds: Kinds, grid: ComposeGrid) -> LowerDelta:
    """A lower bound on delta for the composition of each kind of step with its multiplicity."""
    growth = _growth(kinds)
    weights = [(*_masses_from_below(cells, grid), times) for cells, times in kinds]
    present = compose_laws([(at, p, times) for at, p, _, times in weights], grid, grid.tilt)
    absent = compose_laws([(at, q, times) for at, _, q, times in weights], grid, grid.tilt + 1)
    return LowerDelta(
        grid=grid,
        present=np.exp(_log_event_probabilities(present, -1.0, growth)),
        log_absent=_log_event_probabilities(absent, 1.0, growth),
    )


def _masses_from_above(cells: LossCells, grid: ComposeGrid) -> tuple[Floats, Floats, float]:
    """Grid positions, log masses under P, and the mass under P that counts as infinite loss.

    The mass at each end of a cell is split between the two neighbouring grid points.
    """
    kept = cells.high <= grid.cap
    low, high, p, up = (part[kept] for part in (cells.low, cells.high, cells.p, cells.up))
    infinite = cells.p_infinite + float(cells.p[~kept].sum())
    losses, masses = np.concatenate([low, high]), np.concatenate([p - up, up])
    under = np.floor(losses / grid.width)
    # The share of an atom that moves to the upper point, chosen so that the mean of e^-loss is preserved.
    share = np.clip(np.expm1(under * grid.width - losses) / math.expm1(-grid.width), 0.0, 1.0)
    rounded, (sums,) = _merge(
        np.concatenate([under, under + 1]), np.concatenate([masses * (1 - share), masses * share])
    )
    return rounded, np.log(np.maximum(sums, 1e-320)), infinite


def _masses_from_below(cells: LossCells, grid: ComposeGrid) -> tuple[Floats, Floats, Floats]:
    """Grid positions with log masses under P and Q: each cell moves as a whole to the point nearest to its middle.

    Cells with next to no mass move to the least point, where they cost nothing. A mass under Q that is too small for
    floats is bounded by e^-loss times that under P.
    """
    middle = (np.maximum(cells.low, cells.high - 4 * grid.width) + cells.high) / 2
    rounded = np.rint(np.minimum(middle, grid.cap) / grid.width)
    p, q = cells.p.copy(), cells.q.copy()
    p[-1] += cells.p_infinite
    q[0] += cells.q_infinite
    small = q < _TINY
    rounded = np.where(small & (p < _TINY), rounded[0], rounded)
    small &= p >= _TINY
    small[0] = False
    points, sums = _merge(rounded, p, np.where(small, 0.0, np.maximum(q, _TINY)))
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(sums[0]), np.log(sums[1])
        if small.any():
            bounds = np.minimum(np.log(p[small]) - cells.low[small], math.log(_TINY))
            log_q = np.logaddexp(log_q, _log_sums(np.searchsorted(points, rounded[small]), bounds, len(points)))
    return points, log_p, log_q


def _log_sums(groups: NDArray[np.int64], logs: Floats, count: int) -> Floats:
    """The log of the sum of exp(``logs``) in each of ``count`` groups."""
    top = np.full(count, -np.inf)
    np.maximum.at(top, groups, logs)
    with np.errstate(divide="ignore", under="ignore"):
        sums = np.bincount(groups, np.exp(logs - top[groups]), minlength=count)
        return np.asarray(np.where(sums > 0, top + np.log(sums), -np.inf))


def _merge(at: Floats, *masses: Floats) -> tuple[Floats, list[Floats]]:
    """The distinct positions at which one of the ``masses`` is above 0, and the sum of each of them there."""
    start = at.min()
    if at.max() - start < _DENSE:
        index = (at - start).astype(np.int64)
        cells = start + np.arange(index.max() + 1)
    else:  # with almost no noise, losses are few and far apart
        cells, index = np.unique(at, return_inverse=True)
    sums = [np.asarray(np.bincount(index, part), np.float64) for part in masses]
    occupied = np.flatnonzero(np.logical_or.reduce([part > 0 for part in sums]))
    return cells[occupied], [part[occupied] for part in sums]
