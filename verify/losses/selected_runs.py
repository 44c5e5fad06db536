"""A lower bound for the best of a random number of runs: the loss under a score that reveals the most.

A score may be any function of what a run released. Here it is the most informative statistic about the record: the sum
of the rounded losses of the run's steps. If F is its distribution function and G the generating function of the number
of runs, the statistic of the run with the highest score has distribution function G(F). Masses are sums of products of
positive numbers throughout, so their errors are relative. Extreme values of the statistic count as unobserved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from verify.losses.cells import Floats, LossCells, most_revealing

#: The desired and the largest number of points of a run's statistic, and the tail mass that counts as unobserved.
_POINTS, _MOST_POINTS, _UNSEEN = 900, 2500, 1e-22
_LOG_TAIL = -60.0
#: Relative error of a mass of one step, and of a product or a sum.
_STEP_ERROR, _UNIT = 1e-12, 2.3e-16


@dataclass(frozen=True, slots=True, eq=False)
class StatisticLaw:
    """Masses ``p`` with the record and ``q`` without it, both (points,), of a statistic from position ``first`` on.

    ``unseen`` holds the unobserved mass of each; ``error`` is the largest relative error of a mass.
    """

    first: int
    p: Floats
    q: Floats
    unseen: tuple[float, float]
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LawOfRuns:
    """The law of the number of runs: truncated negative binomial with ``shape`` and gamma, or Poisson (shape None)."""

    mean: float
    shape: float | None
    log_gamma: float = 0.0

    @classmethod
    def of(cls, mean: float, shape: float | None) -> LawOfRuns:
        """The law with this mean above 1, or of a single run if that is 1."""
        log_gamma = 0.0 if shape is None or mean == 1 else log_gamma_of(mean, shape)
        return cls(mean=mean, shape=shape, log_gamma=log_gamma)

    def best(self, masses: Floats) -> Floats:
        """The masses of the best run's statistic if each run's has ``masses``, worst value first."""
        better = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
        if self.shape is None:
            return np.asarray(np.exp(-self.mean * better) * -np.expm1(-self.mean * masses))
        if self.mean == 1:
            return masses
        rest = -math.expm1(self.log_gamma)
        least = math.exp(self.log_gamma) + rest * better  # 1 - (1 - gamma) F at the upper end of each jump of F
        logs = np.log1p(rest * masses / least)
        if self.shape == 0:
            return np.asarray(logs / -self.log_gamma)
        powers = (least + rest * masses) ** -self.shape
        return np.asarray(powers * np.expm1(self.shape * logs) / math.expm1(-self.shape * self.log_gamma))


def selected_cells(step: Callable[[float], LossCells], run_steps: int, runs: LawOfRuns) -> LossCells:
    """Cells of one selection that releases the run with the highest or the lowest statistic, whichever reveals more.

    ``step`` makes the cells of one step's loss from their width, and ``run_steps`` such steps are a run.
    """
    run = _run_law(step, run_steps)
    found = [_best_run_cells(run, runs, highest=highest) for highest in (True, False)]
    return most_revealing(found)


def log_tail(run_steps: int) -> float:
    """The log of the mass that the cells of one of ``run_steps`` steps may leave out."""
    return _LOG_TAIL - math.log(run_steps)


def _best_run_cells(run: StatisticLaw, runs: LawOfRuns, *, highest: bool) -> LossCells:
    order = slice(None, None, 1 if highest else -1)
    p, q = (
        runs.best(np.append(unseen, masses[order])) for masses, unseen in zip((run.p, run.q), run.unseen, strict=True)
    )
    if runs.shape is None:  # there may be no run, and nothing released
        no_run = math.exp(-runs.mean)
        p, q = np.append(p, no_run), np.append(q, no_run)
    both = (p > 0) & (q > 0)
    losses = np.log(p[both]) - np.log(q[both])
    rank = np.argsort(losses, kind="stable")
    error = (4 + abs(runs.shape or 0.0) + runs.mean) * (run.error + len(p) * _UNIT)
    return LossCells(
        low=losses[rank], high=losses[rank], p=p[both][rank], q=q[both][rank], up=np.zeros(len(rank)),
        p_infinite=float(p[~both].sum()), q_infinite=float(q[~both].sum()), error=error,
    )  # fmt: skip


def _run_law(step: Callable[[float], LossCells], steps: int) -> StatisticLaw:
    rough = step(0.05)
    middle = (rough.low + rough.high) / 2
    means = [float(middle @ masses) / float(masses.sum()) for masses in (rough.p, rough.q)]
    spread = max(float((middle - mean) ** 2 @ m) for mean, m in zip(means, (rough.p, rough.q), strict=True))
    width = (steps * (means[0] - means[1]) + 16 * math.sqrt(steps * spread)) / _POINTS
    while True:
        found = _power(_placed(step(width), width), steps)
        if found is not None:
            return found
        width *= 1.6


def _placed(cells: LossCells, width: float) -> StatisticLaw:
    cell_numbers = np.rint((cells.low + cells.high) / 2 / width).astype(np.int64)
    first = int(cell_numbers.min())
    p, q = (np.asarray(np.bincount(cell_numbers - first, masses), np.float64) for masses in (cells.p, cells.q))
    return StatisticLaw(first, p, q, (cells.p_infinite, cells.q_infinite), _STEP_ERROR)


def _power(step: StatisticLaw, steps: int) -> StatisticLaw | None:
    """The distribution of the statistic after ``steps`` steps; None if it has too many points."""
    total = step
    for digit in bin(steps)[3:]:
        total = _without_ends(_sum(total, total))
        if digit == "1":
            total = _without_ends(_sum(total, step))
        if len(total.p) > _MOST_POINTS:
            return None
    return total


def _sum(one: StatisticLaw, other: StatisticLaw) -> StatisticLaw:
    unseen = tuple(a + (1 - a) * b for a, b in zip(one.unseen, other.unseen, strict=True))
    return StatisticLaw(
        one.first + other.first, np.convolve(one.p, other.p), np.convolve(one.q, other.q), (unseen[0], unseen[1]),
        one.error + other.error + (min(len(one.p), len(other.p)) + 2) * _UNIT,
    )  # fmt: skip


def _without_ends(law: StatisticLaw) -> StatisticLaw:
    """The same distribution without its extreme ends, which count as unobserved."""
    either = np.maximum(law.p, law.q)
    begin = int(np.searchsorted(np.cumsum(either), _UNSEEN))
    end = len(either) - int(np.searchsorted(np.cumsum(either[::-1]), _UNSEEN))
    ends = [float(masses[:begin].sum() + masses[end:].sum()) for masses in (law.p, law.q)]
    unseen = law.unseen[0] + ends[0], law.unseen[1] + ends[1]
    return StatisticLaw(law.first + begin, law.p[begin:end], law.q[begin:end], unseen, law.error)


def log_gamma_of(mean: float, shape: float) -> float:
    """The log of gamma, by bisection: the mean number of runs, above 1, decreases as gamma increases."""
    low, high = -700.0, -1e-12
    for _ in range(200):
        middle = (low + high) / 2
        rest = -math.expm1(middle)
        scaled_mean = rest / -middle if shape == 0 else shape * rest / -math.expm1(shape * middle)
        low, high = (middle, high) if math.log(scaled_mean) - middle > math.log(mean) else (low, middle)
    return (low + high) / 2
