"""The loss of the best of a random number of runs, by Papernot and Steinke's theorems 2 and 6 on Renyi divergences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from flint import arb

from verify.events.row import Floats
from verify.losses.cells import LossCells
from verify.losses.profile_cells import cells_of_profile
from verify.losses.selected_runs import log_gamma_of

_KNOTS = 8001


class Selections(Protocol):
    """``steps`` selections of the best of a random number of runs, whose law is that of ``LawOfRuns``."""

    @property
    def mean_runs(self) -> float:
        """The mean number of runs."""

    @property
    def shape(self) -> float | None:
        """The shape of the truncated negative binomial law; None if it is Poisson."""

    @property
    def steps(self) -> int:
        """The number of selections."""


@dataclass(frozen=True, slots=True, eq=False)
class SelectionBound:
    """Bounds on delta of all selections, each the least over Renyi orders.

    Each of the ``orders`` (n,) gives a line in epsilon with slope -(order - 1), and those kept are the lower envelope
    of all. ``moments`` are (order - 1) times the divergence, ``turns`` (n - 1,) the epsilons between them, and
    ``at_zero`` bounds log delta at every epsilon.
    """

    orders: Floats
    moments: Floats
    turns: Floats
    at_zero: float

    @classmethod
    def of(cls, known: Floats, run: Floats, selections: Selections) -> Self:
        """The bound by the divergences of one ``run`` (n,) at the orders ``known`` (n,), above 1 and increasing."""
        with np.errstate(over="ignore"):  # infinite moments are left out below
            orders, moments = _moments(known, run, selections)
        at_zero = math.log(-math.expm1(-float(moments[0] / (orders[0] - 1)))) / 2
        orders, moments = (array[np.isfinite(moments)] for array in (orders, moments))
        above = orders - 1
        starts = moments + above * np.log(above / orders) - np.log(orders)
        kept: list[int] = []
        turns: list[float] = []
        for i in range(len(orders)):
            while kept:
                turn = float((starts[i] - starts[kept[-1]]) / (above[i] - above[kept[-1]]))
                if not turns or turn > turns[-1]:
                    turns.append(turn)
                    break
                kept.pop()
                turns.pop()
            kept.append(i)
        return cls(orders[kept], moments[kept], np.array(turns), at_zero)

    def log_delta(self, epsilons: Floats) -> Floats:
        """Log delta at each epsilon: (a - 1)(D_a - epsilon + log(1 - 1 / a)) - log a, minimized over the orders a."""
        if not len(self.orders):
            return np.full_like(epsilons, self.at_zero)
        best = np.searchsorted(self.turns, epsilons)
        order, above = self.orders[best], self.orders[best] - 1
        log_deltas = self.moments[best] - above * (epsilons - np.log(above / order)) - np.log(order)
        return np.minimum(log_deltas, self.at_zero)

    def cells(self) -> LossCells:
        """Cells of a pair that dominates all selections."""
        return cells_of_profile(self.log_delta, _KNOTS)

    def once(self, ratio: arb) -> arb:
        """Delta of all selections at e^epsilon = ``ratio``; a float that is raised by far more than its rounding."""
        epsilon = np.array([float(ratio.log().mid())])
        return arb(math.exp(self.log_delta(epsilon)[0]) * (1 + 1e-10))


def _moments(known: Floats, run: Floats, selections: Selections) -> tuple[Floats, Floats]:
    """Orders a and (a - 1) D_a of all selections, interpolated linearly between the orders where D_a is computed."""
    mean, shape = selections.mean_runs, selections.shape
    if shape is None:
        run = run + math.log(mean) / (known - 1) + mean * _deltas(known, run)
        run = np.minimum.accumulate(run[::-1])[::-1]
    elif mean > 1:
        stop = -log_gamma_of(mean, shape)
        # With order 1, as a run's divergence is finite there.
        least = min(stop, np.min((1 - 1 / known) * run + stop / known))
        run = run + math.log(mean) / (known - 1) + (1 + shape) * least
        run = np.minimum.accumulate(run[::-1])[::-1]
    moments = selections.steps * (known - 1) * run
    between = np.unique(np.concatenate([known, np.linspace(1.001, 66, 5000), 1 + np.arange(1, 100) / 10]))
    return between, np.interp(between, np.append(1.0, known), np.append(0.0, moments))


def _deltas(orders: Floats, run: Floats) -> Floats:
    """Delta of one run at epsilon = log(a / (a - 1)) for each order a: the least that D_b implies over orders b."""
    deltas = np.zeros(len(orders))
    for b, divergence in zip(orders, run, strict=True):
        implied = (b - 1) * (divergence + np.log1p(-1 / orders) + math.log1p(-1 / b)) - math.log(b)
        deltas = np.minimum(deltas, implied)
    return np.exp(deltas)
