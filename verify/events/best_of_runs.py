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
from scipy.special import gammaln, logsumexp, pdtrc

from privctl.domain.events import BestOfRuns
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events.row import CellMaker, EventVerification, PlannedAs, poisson_unless_all
from verify.events.selection_bound import SelectionBound
from verify.losses.cells import CellReach, LossCells, gaussian_mixture
from verify.losses.selected_runs import LawOfRuns, log_gamma_of, log_tail, selected_cells

_LARGEST_ORDER = 2048
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
    """Whether more than ``most`` runs have a non-negligible probability: the tail of the law, or a bound on it."""
    if shape is None:
        return not pdtrc(most, mean) <= _BEYOND  # NaN below 0
    if mean == 1 or shape > 1:
        return most < 1 or shape > 1
    # P(K = k + 1) is at most 1 - gamma times P(K = k).
    return most * math.log(-math.expm1(log_gamma_of(mean, shape))) > math.log(_BEYOND)


def _cells(event: BestOfRuns, attained_only: bool) -> CellMaker:
    if attained_only:
        return lambda width, reach: _attained(event)
    return lambda width, reach: _dominating(event)


@lru_cache(maxsize=4)
def _dominating(event: BestOfRuns) -> LossCells:
    return _bound(event).cells()


@lru_cache(maxsize=8)
def _attained(event: BestOfRuns) -> LossCells:
    """Raises OverflowError if there is so little noise that likelihood ratios overflow."""
    noise, rate, steps = event.noise_multiplier, event.sample_rate, event.run_steps
    if rate == 1:
        noise, steps = noise / math.sqrt(steps), 1
    if steps / noise**2 * rate > 300 or noise < 0.05:
        raise OverflowError(f"noise of {noise:g} clip norms is too little for this bound")
    shifts, law, reach = np.array([0.0, 1.0]), np.array([1 - rate, rate]), CellReach(log_tail(steps))
    runs = LawOfRuns.of(event.mean_runs, event.shape)
    return selected_cells(lambda width: gaussian_mixture(shifts, law, noise, width, reach), steps, runs)


@lru_cache(maxsize=8)
def _bound(event: BestOfRuns) -> SelectionBound:
    if event.sample_rate == 1:
        orders = 1 + np.geomspace(1e-3, 1e6, 3999)
        run = event.run_steps * orders / (2 * event.noise_multiplier**2)
    else:
        orders = np.arange(2.0, _LARGEST_ORDER + 1)
        run = event.run_steps * np.array([_batch_divergence(event, int(a)) for a in orders])
    return SelectionBound.of(orders, run, event)


def _batch_divergence(event: BestOfRuns, order: int) -> float:
    """D_a of a sampled Gaussian: log sum_k C(a, k) (1 - q)^(a - k) q^k e^(k (k - 1) / (2 s^2)), over a - 1."""
    k = np.arange(order + 1.0)
    ways = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = ways + (order - k) * math.log1p(-event.sample_rate) + k * math.log(event.sample_rate)
    return max(0.0, float(logsumexp(terms + k * (k - 1) / (2 * event.noise_multiplier**2)))) / (order - 1)


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
    once=lambda event: _bound(event).once,
    in_floats=True,
    statements={
        "contribution": (
            "one example changes what noise is added to by the clip norm at most, and only the best of a secret, "
            "random number of runs is released",
        ),
    },
)
