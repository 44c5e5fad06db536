"""The best of a random number of runs, by Papernot and Steinke's theorems 2 and 6 on Renyi divergences.

The lower bound is for the best by a score that depends on the record (``verify.losses.selected_runs``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb
from scipy.special import gammaln, logsumexp

from privctl.domain.events import BestOfRuns
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events.row import CellMaker, DeltaOfRatio, EventVerification, Floats, PlannedAs, poisson_unless_all
from verify.losses.cells import LossCells
from verify.losses.profile_cells import cells_of_profile
from verify.losses.selected_runs import LawOfRuns, selected_cells

_KNOTS, _LARGEST_ORDER = 8001, 2048
#: The shape of each distribution of the number of runs.
SHAPES: Mapping[str, float | None] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}
#: The probability that may lie beyond the number of runs that is said never to be exceeded.
_BEYOND = math.exp(-99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchParameters(BudgetParameters):
    """A plan of a private search."""

    expected_runs: float | None = None
    runs_law: str | None = None


def _more(parameters: Any) -> Mapping[str, Any]:
    return {"shape": SHAPES.get(parameters.runs_law or "geometric", math.nan)}


def runs_exceed(mean: float, shape: float | None, most: int) -> bool:
    """Whether more than ``most`` runs have a non-negligible probability, by an upper bound on the tail of the law."""
    if shape is None:
        logs = most * math.log(mean) - mean - gammaln(most + 1)  # log P(K = most); each next is at most half as likely
        return most < 2 * mean or bool(logs > math.log(_BEYOND))
    if mean == 1 or shape > 1:
        return most < 1 or shape > 1
    # P(K = k + 1) is at most 1 - gamma times P(K = k).
    return most * math.log(-math.expm1(_log_gamma(mean, shape))) > math.log(_BEYOND)


def _cells(event: BestOfRuns, attained_only: bool) -> CellMaker:
    if attained_only:
        return lambda width, reach: _attained(event)
    return lambda width, reach: _of_runs(event)


def _attained(event: BestOfRuns) -> LossCells:
    log_gamma = 0.0 if event.shape is None or event.mean_runs == 1 else _log_gamma(event.mean_runs, event.shape)
    runs = LawOfRuns(mean=event.mean_runs, shape=event.shape, log_gamma=log_gamma)
    return selected_cells(event.noise_multiplier, event.sample_rate, event.run_steps, runs)


@lru_cache(maxsize=4)
def _of_runs(event: BestOfRuns) -> LossCells:
    return cells_of_profile(lambda epsilons: _log_delta(event, epsilons), _KNOTS)


def _once(event: BestOfRuns) -> DeltaOfRatio:
    """Delta of all selections by the best order; a float that is raised by far more than its rounding error."""

    def delta(ratio: arb) -> arb:
        epsilon = np.array([float(ratio.log().mid())])
        return arb(math.exp(_log_delta(event, epsilon)[0]) * (1 + 1e-10))

    return delta


def _log_delta(event: BestOfRuns, epsilons: Floats) -> Floats:
    """Log delta at each epsilon: (a - 1)(D_a - epsilon + log(1 - 1 / a)) - log a, minimized over many orders a."""
    orders, moments, turns, apart = _best_orders(event)
    if not len(orders):
        return np.full_like(epsilons, apart)
    best = np.searchsorted(turns, epsilons)
    order, above = orders[best], orders[best] - 1
    found = moments[best] - above * (epsilons - np.log(above / order)) - np.log(order)
    return np.minimum(found, apart)


@lru_cache(maxsize=8)
def _best_orders(event: BestOfRuns) -> tuple[Floats, Floats, Floats, float]:
    """The orders that are best at some epsilon, their moments, the epsilons between them, and a bound for all epsilons.

    Each order gives a line in epsilon with slope -(a - 1), and the minimum of all lines is their lower envelope.
    """
    orders, moments = _moments(event)
    apart = math.log(-math.expm1(-float(moments[0] / (orders[0] - 1)))) / 2
    orders, moments = (each[np.isfinite(moments)] for each in (orders, moments))
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
    return orders[kept], moments[kept], np.array(turns), apart


@lru_cache(maxsize=8)
def _moments(event: BestOfRuns) -> tuple[Floats, Floats]:
    """Orders a and (a - 1) D_a of all selections, interpolated linearly between the orders where D_a is computed."""
    if event.sample_rate == 1:
        known = 1 + np.geomspace(1e-3, 1e6, 3999)
        run = event.run_steps * known / (2 * event.noise_multiplier**2)
    else:
        known = np.arange(2.0, _LARGEST_ORDER + 1)
        run = event.run_steps * np.array([_of_batch(event, int(a)) for a in known])
    if event.shape is None:
        run = run + math.log(event.mean_runs) / (known - 1) + event.mean_runs * _deltas(known, run)
        run = np.minimum.accumulate(run[::-1])[::-1]
    elif event.mean_runs > 1:
        least = np.min((1 - 1 / known) * run - _log_gamma(event.mean_runs, event.shape) / known)
        run = run + math.log(event.mean_runs) / (known - 1) + (1 + event.shape) * least
        run = np.minimum.accumulate(run[::-1])[::-1]
    moments = event.steps * (known - 1) * run
    between = np.unique(np.concatenate([known, np.linspace(1.001, 66, 5000), 1 + np.arange(1, 100) / 10]))
    return between, np.interp(between, np.append(1.0, known), np.append(0.0, moments))


def _deltas(orders: Floats, run: Floats) -> Floats:
    """Delta of one run at epsilon = log(a / (a - 1)) for each order a: the least that D_b implies over orders b."""
    found = np.zeros(len(orders))
    for b, divergence in zip(orders, run, strict=True):
        implied = (b - 1) * (divergence + np.log1p(-1 / orders) + math.log1p(-1 / b)) - math.log(b)
        found = np.minimum(found, implied)
    return np.exp(found)


def _of_batch(event: BestOfRuns, order: int) -> float:
    """D_a of a sampled Gaussian: log sum_k C(a, k) (1 - q)^(a - k) q^k e^(k (k - 1) / (2 s^2)), over a - 1."""
    k = np.arange(order + 1.0)
    ways = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = ways + (order - k) * math.log1p(-event.sample_rate) + k * math.log(event.sample_rate)
    return max(0.0, float(logsumexp(terms + k * (k - 1) / (2 * event.noise_multiplier**2)))) / (order - 1)


def _log_gamma(mean: float, shape: float) -> float:
    """The log of gamma, by bisection: the mean number of runs decreases as gamma increases."""
    low, high = -700.0, -1e-12
    for _ in range(200):
        middle = (low + high) / 2
        rest = -math.expm1(middle)
        scaled_mean = rest / -middle if shape == 0 else shape * rest / -math.expm1(shape * middle)
        low, high = (middle, high) if math.log(scaled_mean) - middle > math.log(mean) else (low, middle)
    return (low + high) / 2


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="search",
        parameters=SearchParameters,
        fields={
            "noise_multiplier": ("noise_multiplier", None),
            "expected_runs": ("mean_runs", None),
            "sample_rate": ("sample_rate", 1.0),
            "steps": ("run_steps", 1),
        },
        solved={"noise multiplier": "noise_multiplier"},
        more=_more,
    ),
    neighbours=lambda event: Adjacency.ADD_OR_REMOVE,
    chances=lambda event: (1.0 if event.sample_rate else 0.0,),
    drawn=lambda event: poisson_unless_all(event.sample_rate),
    cells=_cells,
    parts=lambda event: [(event, 1)],
    attained=lambda event: False,
    once=_once,
    in_floats=True,
    statements={
        "contribution": (
            "one example changes what noise is added to by the clip norm at most, and only the best of a secret, "
            "random number of runs is released",
        ),
    },
)
