"""The best of a random number of runs with Laplace noise on the whole data.

The upper bound is that of ``selection_bound``. The lower bound is for the best by a score that depends on the record
(``verify.losses.selected_runs``).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from privctl.domain.events import BestOfLaplaceRuns, LaplaceNoise
from privctl.domain.guarantee import Adjacency
from verify.events import laplace
from verify.events.row import CellMaker, EventVerification, Floats, PlannedAs
from verify.events.selection_bound import SelectionBound
from verify.losses.cells import CellReach, LossCells, atoms
from verify.losses.selected_runs import LawOfRuns, log_tail, selected_cells

#: Orders of a run's divergences; the largest are as good as infinite ones.
_ORDERS = np.concatenate([1 + np.geomspace(1e-3, 1e6, 4999), np.geomspace(1e7, 1e29, 12)])
#: The largest loss of a run for which likelihood ratios do not overflow, and one too small to be told from 0.
_MOST_LOSS, _NO_LOSS = 300, 1e-12


def _cells(event: BestOfLaplaceRuns, attained_only: bool) -> CellMaker:
    if attained_only:
        return lambda width, reach: _attained(event)
    return lambda width, reach: _dominating(event)


@lru_cache(maxsize=4)
def _dominating(event: BestOfLaplaceRuns) -> LossCells:
    return _bound(event).cells()


@lru_cache(maxsize=8)
def _attained(event: BestOfLaplaceRuns) -> LossCells:
    """Raises OverflowError if there is so little noise that likelihood ratios overflow."""
    if event.run_steps / event.scale > _MOST_LOSS:
        raise OverflowError(f"noise of {event.scale:g} sensitivities is too little for this bound")
    if event.run_steps / event.scale < _NO_LOSS:
        return atoms(np.zeros(1), np.zeros(1))
    step, reach = laplace.ROW.cells(LaplaceNoise(scale=event.scale), True), CellReach(log_tail(event.run_steps))
    return selected_cells(lambda width: step(width, reach), event.run_steps, LawOfRuns.of(event.mean_runs, event.shape))


@lru_cache(maxsize=8)
def _bound(event: BestOfLaplaceRuns) -> SelectionBound:
    return SelectionBound.of(_ORDERS, event.run_steps * _run_divergence(1 / event.scale, _ORDERS), event)


def _run_divergence(epsilon: float, orders: Floats) -> Floats:
    """(log(a e^((a - 1) e) + (a - 1) e^(-a e)) - log(2 a - 1)) / (a - 1) for each order a, and at most e."""
    with np.errstate(over="ignore"):
        logs = np.logaddexp(np.log(orders) + (orders - 1) * epsilon, np.log(orders - 1) - orders * epsilon)
    return np.asarray(np.clip((logs - np.log(2 * orders - 1)) / (orders - 1), 0.0, epsilon))


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="laplace-search",
        fields={
            "scale": ("scale", None),
            "mean_runs": ("mean_runs", None),
            "shape": ("shape", 1.0),
            "run_steps": ("run_steps", 1),
            "steps": ("steps", 1),
        },
    ),
    neighbours=lambda event: Adjacency.ADD_OR_REMOVE,
    chances=lambda event: (1.0,),
    drawn=lambda event: None,
    cells=_cells,
    parts=lambda event: [(event, 1)],
    attained=lambda event: False,
    once=lambda event: _bound(event).once,
    statements={
        "contribution": (
            "one example changes each number that noise is added to by the sensitivity at most, and only the best of a "
            "secret, random number of runs is released",
        ),
    },
)
