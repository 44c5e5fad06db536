"""How it is verified, as a module of ``verify/events`` would say: by adding up the counts themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.reports.parameters import BudgetParameters
from tests.events.geometric_event import GeometricNoise
from verify.events.row import (
    OF_STEPS,
    DeltaOfRatio,
    Draw,
    Floats,
    PlannedAs,
    PoissonVerification,
    fixed_cells,
)
from verify.losses.cells import LossCells, atoms, largest_sampled_loss


def _of_counts(event: GeometricNoise) -> LossCells:
    """Counts up to 0 and from 1 on: the noise, moved up by one with the record, favours it from 1 on."""
    keep = math.exp(-event.epsilon)
    moved = np.array([keep, 1.0]) / (1 + keep)
    present = event.sample_rate * moved + (1 - event.sample_rate) * moved[::-1]
    return atoms(np.log(present / moved[::-1]), np.log(present))


def _once(event: GeometricNoise) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        rate, high = arb(event.sample_rate), 1 / (1 + (-arb(event.epsilon)).exp())
        low = 1 - high
        present = rate * high + (1 - rate) * low
        return (present - ratio * low).max(high - ratio * (1 - present)).max(arb(0))

    return delta


def _draw(event: GeometricNoise) -> Draw:
    fade = 1 - math.exp(-event.epsilon)

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        noise = rng.geometric(fade, count) - rng.geometric(fade, count)
        if present:
            noise += rng.random(count) < event.sample_rate
        grown = (np.abs(noise) - np.abs(noise - 1)) * event.epsilon
        return np.asarray(np.log1p(event.sample_rate * np.expm1(grown)))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricParameters(BudgetParameters):
    """A plan of geometric noise."""

    count_epsilon: float | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="geometric",
        parameters=GeometricParameters,
        fields={"count_epsilon": ("epsilon", None), **OF_STEPS},
        solved={"count epsilon": "epsilon"},
    ),
    cells=fixed_cells(_of_counts),
    largest_loss=lambda event: largest_sampled_loss(event.epsilon, event.sample_rate),
    once=_once,
    draw=_draw,
    statements={"contribution": ("one example changes a count by one at most",)},
)
