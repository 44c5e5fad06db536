"""Randomized response on the bits of a batch, each kept or flipped."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import RandomizedResponse
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

#: The most bits for which one step has an exact formula here.
_MOST_BITS = 512


def _cells_of(event: RandomizedResponse) -> LossCells:
    """Cells for a record that flips all bits of its Poisson batch, each of which is then kept with log-odds epsilon."""
    kept = np.arange(event.bits + 1.0)
    log_kept = -math.log1p(math.exp(-event.epsilon))
    log_choose = np.array([math.lgamma(event.bits + 1) - math.lgamma(k + 1) - math.lgamma(event.bits - k + 1)
                           for k in kept])  # fmt: skip
    log_q = log_choose + event.bits * log_kept - kept * event.epsilon
    losses = sampled_losses((2 * kept - event.bits) * event.epsilon, event.sample_rate)
    return atoms(losses, log_q + losses)


def _once(event: RandomizedResponse) -> DeltaOfRatio | None:
    if event.bits > _MOST_BITS or event.bits * event.epsilon > 700:
        return None
    return lambda ratio: _delta(event, ratio)


def _delta(event: RandomizedResponse, ratio: arb) -> arb:
    odds = arb(event.epsilon).exp()
    kept, turned = odds / (1 + odds), 1 / (1 + odds)
    masses = [math.comb(event.bits, k) * kept**k * turned ** (event.bits - k) for k in range(event.bits + 1)]
    return delta_of_outcomes(zip(masses, reversed(masses), strict=True), event.sample_rate, ratio)


def _draw(event: RandomizedResponse) -> Draw:
    kept = 1 / (1 + math.exp(-event.epsilon))

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        turned = (rng.random(count) < event.sample_rate) if present else np.zeros(count, bool)
        agree = rng.binomial(event.bits, np.where(turned, kept, 1 - kept))
        losses = np.asarray((2 * agree - event.bits) * event.epsilon, np.float64)
        return np.asarray(sampled_losses(losses, event.sample_rate))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseParameters(BudgetParameters):
    """A plan of randomized response."""

    bit_epsilon: float | None = None
    bits: int | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="randomized-response",
        parameters=ResponseParameters,
        fields={"bit_epsilon": ("epsilon", None), "bits": ("bits", 1), **OF_STEPS},
        solved={"bit epsilon": "epsilon"},
    ),
    cells=fixed_cells(_cells_of),
    largest_loss=lambda event: largest_sampled_loss(event.bits * event.epsilon, event.sample_rate),
    once=_once,
    draw=_draw,
)
