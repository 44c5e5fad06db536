"""The best of a random number of runs with Laplace noise on the whole data (Papernot and Steinke 2022)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from privctl.accounting.events.best_of_runs import deltas_of, least_of_stop
from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms, Laplace
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.renyi_profile import pair_of_deltas
from privctl.accounting.runs_law import gamma_of
from privctl.domain.events import BestOfLaplaceRuns

#: Orders over which the theorems take the least. At the largest, divergences are those of infinite order, as losses
#: are bounded, so that a delta of 0 comes out as 0 but for rounding.
_ORDERS = np.concatenate([1 + np.geomspace(1e-3, 1e6, 600), np.geomspace(1e7, 1e30, 24)])
#: Number of epsilons at which delta is computed, the largest of them, and a generous bound on a delta's relative error.
_KNOTS, _MOST_EPSILON, _ROUNDING = 4001, 600.0, 1e-12
#: The loss of a release that may be nothing at all.
_NO_LOSS = Atoms((0.0,), (0.0,))


def _pair(event: BestOfLaplaceRuns, lower: bool) -> RepeatedPair:
    """The pair that follows from the divergences; for a lower bound a single run, which is exact if all runs tie.

    A Poisson number of runs may be none.
    """
    if not lower:
        return RepeatedPair(_pair_of_all(event), 1)
    if event.shape is None:
        return RepeatedPair(_NO_LOSS, event.steps)
    return RepeatedPair(Laplace(event.scale), event.run_steps * event.steps)


@lru_cache(maxsize=8)
def _pair_of_all(event: BestOfLaplaceRuns) -> Atoms:
    divergences = event.steps * _divergences(event, _ORDERS)
    epsilons = np.linspace(0.0, min(float(divergences[-1]), _MOST_EPSILON), _KNOTS)
    distance = math.sqrt(-math.expm1(-float(divergences.min())))  # at any epsilon (Bretagnolle and Huber)
    deltas = np.minimum(deltas_of(_ORDERS, divergences, epsilons), distance) * (1 + _ROUNDING)
    return pair_of_deltas(epsilons, np.minimum.accumulate(np.minimum(deltas, 1.0)))


def _divergences(event: BestOfLaplaceRuns, alphas: Floats) -> Floats:
    """Theorems 2 and 6 at ``alphas``, or at a larger order of ``_ORDERS`` where they give less."""
    known = np.minimum.accumulate(_selection_divergences(event, _ORDERS)[::-1])[::-1]
    larger = np.append(known, math.inf)[np.searchsorted(_ORDERS, alphas)]
    return np.asarray(np.minimum(_selection_divergences(event, alphas), larger))


def _selection_divergences(event: BestOfLaplaceRuns, alphas: Floats) -> Floats:
    run = _run_divergences(event, alphas)
    if event.shape is not None and event.mean_runs == 1:
        return run
    above, known = alphas - 1, _run_divergences(event, _ORDERS)
    if event.shape is None:
        rest: Floats | float = event.mean_runs * deltas_of(_ORDERS, known, np.log1p(1 / above))
    else:
        rest = (1 + event.shape) * least_of_stop(_ORDERS, known, -math.log(gamma_of(event.mean_runs, event.shape)))
    return np.asarray(run + math.log(event.mean_runs) / above + rest)


def _run_divergences(event: BestOfLaplaceRuns, alphas: Floats) -> Floats:
    """A run's divergences (Mironov 2017, proposition 6)."""
    epsilon = 1 / event.scale
    with np.errstate(over="ignore"):
        opposite = np.expm1((1 - 2 * alphas) * epsilon)
    share = (alphas - 1) / (2 * alphas - 1)
    once = epsilon + np.log1p(share * opposite) / (alphas - 1)
    return np.asarray(event.run_steps * np.clip(once, 0.0, epsilon))


ROW = EventAccounting(pair=_pair, divergences=_divergences)
