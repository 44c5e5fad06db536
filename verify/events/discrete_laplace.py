"""Discrete Laplace noise on an integer, by summing over its outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import DiscreteLaplaceNoise
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
from verify.losses.cells import LossCells, atoms, largest_sampled_loss, sampled_losses

#: The largest sensitivity for which one step has an exact formula here.
_MOST_OUTCOMES = 512


def _outcome_cells(event: DiscreteLaplaceNoise) -> LossCells:
    """One outcome for all values <= 0, one for each value below the sensitivity, and one for all from it on."""
    outcome = np.arange(event.sensitivity + 1.0)
    fade = math.exp(-event.decay)
    log_q = math.log1p(-fade) - math.log1p(fade) - event.decay * outcome
    log_q[0], log_q[-1] = -math.log1p(fade), -event.decay * event.sensitivity - math.log1p(fade)
    losses = sampled_losses(event.decay * (2 * outcome - event.sensitivity), event.sample_rate)
    return atoms(losses, log_q + losses)


def _once(event: DiscreteLaplaceNoise) -> DeltaOfRatio | None:
    if event.sensitivity > _MOST_OUTCOMES or event.sensitivity * event.decay > 700:
        return None

    def delta(ratio: arb) -> arb:
        fade, most = (-arb(event.decay)).exp(), event.sensitivity
        inner = (1 - fade) / (1 + fade)
        # The outcomes at both ends include all beyond them, which have the same likelihood ratio.
        laws = [inner * fade**x for x in range(most + 1)]
        laws[0], laws[most] = 1 / (1 + fade), fade**most / (1 + fade)
        return delta_of_outcomes(zip(reversed(laws), laws, strict=True), event.sample_rate, ratio)

    return delta


def _draw(event: DiscreteLaplaceNoise) -> Draw:
    fade = -math.expm1(-event.decay)

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        seen = rng.geometric(fade, count) - rng.geometric(fade, count)
        if present:
            seen += event.sensitivity * (rng.random(count) < event.sample_rate)
        grown = (np.abs(seen) - np.abs(seen - event.sensitivity)) * event.decay
        return np.asarray(sampled_losses(grown, event.sample_rate))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplaceParameters(BudgetParameters):
    """A plan of discrete Laplace noise."""

    decay: float | None = None
    sensitivity: int | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="discrete-laplace",
        parameters=DiscreteLaplaceParameters,
        fields={"decay": ("decay", None), "sensitivity": ("sensitivity", 1), **OF_STEPS},
        solved={"decay": "decay"},
    ),
    cells=fixed_cells(_outcome_cells),
    largest_loss=lambda event: largest_sampled_loss(event.decay * event.sensitivity, event.sample_rate),
    once=_once,
    draw=_draw,
    statements={
        "contribution": ("one example changes the whole number that noise is added to by its sensitivity at most",),
    },
)
