"""A mechanism with stated zero-concentrated differential privacy, as cells of the privacy profile that follows.

The best order a for an epsilon solves rho (2 a - 1) + log(1 - 1 / a) = epsilon - xi, whose left side increases with a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from flint import arb

from privctl.domain.events import ZeroConcentratedDp
from privctl.reports.parameters import BudgetParameters
from verify.events.row import CellMaker, DeltaOfRatio, EventVerification, Floats, PlannedAs
from verify.losses.cells import LossCells, plain_gaussian
from verify.losses.profile_cells import cells_of_profile

#: The number of epsilons at which delta is computed.
_KNOTS = 16001


def _joined(events: Sequence[ZeroConcentratedDp]) -> ZeroConcentratedDp:
    """All steps of all ``events`` merged into one step, since divergences add up."""
    return ZeroConcentratedDp(
        rho=math.fsum(e.steps * e.rho for e in events), xi=math.fsum(e.steps * e.xi for e in events),
        neighbours=events[0].neighbours,
    )  # fmt: skip


def _cells(event: ZeroConcentratedDp, attained_only: bool) -> CellMaker:
    if attained_only:  # attained by a Gaussian with this rho
        return lambda width, reach: plain_gaussian(math.sqrt(2 * event.rho), width, reach)
    return lambda width, reach: _profile_cells(event.rho, event.xi)


@lru_cache(maxsize=4)
def _profile_cells(rho: float, xi: float) -> LossCells:
    return cells_of_profile(partial(_log_delta, rho, xi), _KNOTS)


def _best_order(rho: float, target: Floats) -> Floats:
    """The best order minus 1 for each ``target`` epsilon - xi, by bisection of its logarithm."""
    low, high = np.full_like(target, -60.0), np.full_like(target, 60.0)
    for _ in range(70):
        middle = (low + high) / 2
        above = np.exp(middle)
        falls_short = rho * (2 * above + 1) + np.log(above) - np.log1p(above) < target
        low, high = np.where(falls_short, middle, low), np.where(falls_short, high, middle)
    return np.asarray(np.exp((low + high) / 2))


def _log_delta(rho: float, xi: float, epsilons: Floats) -> Floats:
    above = _best_order(rho, epsilons - xi)
    exponent = xi + rho * (1 + above) - epsilons + np.log(above) - np.log1p(above)
    apart = math.log(-math.expm1(-rho - xi)) / 2  # orders near 1 (Bretagnolle and Huber)
    return np.minimum(above * exponent - np.log1p(above), apart)


def _once(event: ZeroConcentratedDp) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        epsilon, rho, xi = ratio.log(), arb(event.rho), arb(event.xi)
        at = np.array([float(epsilon.mid())])
        above = arb(float(_best_order(event.rho, at - event.xi)[0]))  # any order is sound
        exponent = xi + rho * (1 + above) - epsilon + above.log() - (1 + above).log()
        apart = (1 - (-(rho + xi)).exp()).sqrt()
        return ((above * exponent).exp() / (1 + above)).min(apart)

    return delta


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcentratedParameters(BudgetParameters):
    """A plan of steps with a stated rho."""

    rho: float | None = None
    xi: float | None = None


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="zcdp",
        parameters=ConcentratedParameters,
        fields={"rho": ("rho", None), "xi": ("xi", 0.0), "steps": ("steps", 1)},
        solved={"rho": "rho"},
    ),
    neighbours=lambda event: event.neighbours,
    chances=lambda event: (1.0,),
    drawn=lambda event: None,
    cells=_cells,
    joined=_joined,
    attained=lambda event: False,
    once=_once,
    statements={
        "contribution": (
            "each step is zero-concentrated differentially private as stated, for (these neighbours|adding or removing "
            "one example)",
        ),
    },
)
