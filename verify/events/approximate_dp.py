"""A mechanism with stated epsilon and delta, dominated by a noisy bit, or by disclosure with probability delta."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import EpsilonDeltaDp
from privctl.reports.parameters import BudgetParameters
from verify.events.row import (
    OF_STEPS,
    DeltaOfRatio,
    Draw,
    Floats,
    PlannedAs,
    PoissonVerification,
    delta_of_outcomes,
    fixed_cells,
)
from verify.losses.cells import LossCells, largest_sampled_loss, sampled_losses


def _outcome_cells(event: EpsilonDeltaDp) -> LossCells:
    """Four outcomes by increasing loss: absence disclosed, a bit against the record, one for it, presence disclosed."""
    rate, disclosed = event.sample_rate, event.delta
    kept = (1 - disclosed) / (1 + math.exp(-event.epsilon))
    turned = kept * math.exp(-event.epsilon)
    with_it, without = np.array([0.0, turned, kept]), np.array([disclosed, kept, turned])
    present = rate * with_it + (1 - rate) * without
    seen = (present > 0) & (without > 0)
    losses = np.log(present[seen] / without[seen])
    return LossCells(
        low=losses,
        high=losses,
        p=present[seen],
        q=without[seen],
        up=np.zeros(int(seen.sum())),
        p_infinite=rate * disclosed,
        q_infinite=disclosed if rate == 1 else 0.0,
    )


def _once(event: EpsilonDeltaDp) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        disclosed, odds = arb(event.delta), arb(event.epsilon).exp()
        kept, turned = (1 - disclosed) * odds / (1 + odds), (1 - disclosed) / (1 + odds)
        laws = ((arb(0), disclosed), (turned, kept), (kept, turned), (disclosed, arb(0)))
        return delta_of_outcomes(laws, event.sample_rate, ratio)

    return delta


def _draw(event: EpsilonDeltaDp) -> Draw | None:
    if event.delta > 0:
        return None

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        is_drawn = (rng.random(count) < event.sample_rate) if present else np.zeros(count, bool)
        chance = np.where(is_drawn, 1 / (1 + math.exp(-event.epsilon)), 1 / (1 + math.exp(event.epsilon)))
        losses = np.where(rng.random(count) < chance, event.epsilon, -event.epsilon)
        return np.asarray(sampled_losses(losses, event.sample_rate))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateParameters(BudgetParameters):
    """A plan of steps with a stated epsilon and delta."""

    step_epsilon: float | None = None
    step_delta: float | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="approximate-dp",
        parameters=ApproximateParameters,
        fields={"step_epsilon": ("epsilon", None), "step_delta": ("delta", 0.0), **OF_STEPS},
        solved={"step epsilon": "epsilon"},
    ),
    neighbours=lambda event: event.neighbours,
    cells=fixed_cells(_outcome_cells),
    largest_loss=lambda event: largest_sampled_loss(event.epsilon, event.sample_rate) if event.delta == 0 else math.inf,
    once=_once,
    draw=_draw,
    statements={
        "contribution": (
            "each step has its stated epsilon and delta for (these neighbours|adding or removing one example)",
        ),
    },
)
