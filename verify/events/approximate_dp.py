"""A mechanism of which an epsilon and a delta are stated: a bit that is true with log-odds epsilon, or all is told."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import EpsilonDeltaDp
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events.row import (
    OF_STEPS,
    CellMaker,
    DeltaOfRatio,
    Draw,
    EventVerification,
    Floats,
    PlannedAs,
    poisson_unless_all,
)
from verify.recompute.step_cells import LossCells, largest_on_batch


def _cells(event: EpsilonDeltaDp, attained_only: bool) -> CellMaker:
    return lambda width, reach: _of_outcomes(event)


def _of_outcomes(event: EpsilonDeltaDp) -> LossCells:
    """Four outcomes, by rising loss: the absence told, a bit against the record, a bit for it, the presence told."""
    rate, told = event.sample_rate, event.delta
    kept = (1 - told) / (1 + math.exp(-event.epsilon))
    turned = kept * math.exp(-event.epsilon)
    with_it, without = np.array([0.0, turned, kept]), np.array([told, kept, turned])
    present = rate * with_it + (1 - rate) * without
    seen = (present > 0) & (without > 0)
    losses = np.log(present[seen] / without[seen])
    return LossCells(
        low=losses,
        high=losses,
        p=present[seen],
        q=without[seen],
        up=np.zeros(int(seen.sum())),
        p_infinite=rate * told,
        q_infinite=told if rate == 1 else 0.0,
    )


def _once(event: EpsilonDeltaDp) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        rate, told, odds = arb(event.sample_rate), arb(event.delta), arb(event.epsilon).exp()
        kept, turned = (1 - told) * odds / (1 + odds), (1 - told) / (1 + odds)
        totals = [arb(0), arb(0)]
        for sure, without in ((arb(0), told), (turned, kept), (kept, turned), (told, arb(0))):
            present = rate * sure + (1 - rate) * without
            totals[0] += (present - ratio * without).max(arb(0))
            totals[1] += (without - ratio * present).max(arb(0))
        return totals[0].max(totals[1])

    return delta


def _draw(event: EpsilonDeltaDp) -> Draw | None:
    if event.delta > 0:
        return None

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        held = (rng.random(count) < event.sample_rate) if present else np.zeros(count, bool)
        chance = np.where(held, 1 / (1 + math.exp(-event.epsilon)), 1 / (1 + math.exp(event.epsilon)))
        losses = np.where(rng.random(count) < chance, event.epsilon, -event.epsilon)
        return np.asarray(np.log1p(event.sample_rate * np.expm1(losses)))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateParameters(BudgetParameters):
    """A plan of steps with a stated epsilon and delta."""

    step_epsilon: float | None = None
    step_delta: float | None = None


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="approximate-dp",
        parameters=ApproximateParameters,
        fields={"step_epsilon": ("epsilon", None), "step_delta": ("delta", 0.0), **OF_STEPS},
        solved={"step epsilon": "epsilon"},
    ),
    neighbours=lambda event: Adjacency.ADD_OR_REMOVE,
    chances=lambda event: (event.sample_rate,),
    drawn=lambda event: poisson_unless_all(event.sample_rate),
    cells=_cells,
    largest_loss=lambda event: largest_on_batch(event.epsilon, event.sample_rate) if event.delta == 0 else math.inf,
    once=_once,
    draw=_draw,
    statements={
        "contribution": ("each step has its stated epsilon and delta for adding or removing one example",),
    },
)
