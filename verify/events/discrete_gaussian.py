"""Discrete Gaussian noise on an integer, with probabilities by Poisson's summation formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import DiscreteGaussianNoise
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
from verify.losses.cells import LossCells, atoms, sampled_losses

#: The most outcomes for which one step has an exact formula here.
_MOST_OUTCOMES = 4096
#: Standard deviations beyond which probabilities underflow, and beyond which they are negligible at 256 bits.
_REACH, _BALL_REACH = 39, 20


def _outcome_cells(event: DiscreteGaussianNoise) -> LossCells:
    variance, move = event.stddev**2, event.sensitivity
    side = math.ceil(_REACH * event.stddev)
    outcome = np.arange(-side, side + move + 1.0)
    log_q = -(outcome**2) / (2 * variance) - math.log(_total(event.stddev))
    losses = sampled_losses((outcome**2 - (outcome - move) ** 2) / (2 * variance), event.sample_rate)
    return atoms(losses, log_q + losses)


def _total(stddev: float) -> float:
    """The sum of exp(-k^2 / (2 s^2)) over all integers, as s sqrt(2 pi) times the sum of exp(-2 (pi s k)^2)."""
    waves = math.fsum(math.exp(-2 * (math.pi * stddev * k) ** 2) for k in range(1, 200))
    return stddev * math.sqrt(2 * math.pi) * (1 + 2 * waves)


def _once(event: DiscreteGaussianNoise) -> DeltaOfRatio | None:
    side = math.ceil(_BALL_REACH * event.stddev) + 2
    if 2 * side + event.sensitivity > _MOST_OUTCOMES:
        return None
    fall = -1 / (2 * arb(event.stddev) ** 2)
    weights = [(fall * k * k).exp() for k in range(side + event.sensitivity + 1)]
    # Beyond the last outcome, every weight is less than half of the one before.
    beyond = weights[side] * arb(0, 2)
    total = 2 * sum(weights[1:], arb(0)) + weights[0] + beyond

    def delta(ratio: arb) -> arb:
        places = range(-side, side + event.sensitivity + 1)
        laws = ((weights[abs(k - event.sensitivity)], weights[abs(k)]) for k in places)
        return (delta_of_outcomes(laws, event.sample_rate, ratio) + beyond) / total

    return delta


def _draw(event: DiscreteGaussianNoise) -> Draw:
    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        seen = _noise(rng, event.stddev, count)
        if present:
            seen = seen + event.sensitivity * (rng.random(count) < event.sample_rate)
        grown = (seen**2 - (seen - event.sensitivity) ** 2) / (2 * event.stddev**2)
        return np.asarray(sampled_losses(grown, event.sample_rate))

    return draw


def _noise(rng: np.random.Generator, stddev: float, count: int) -> Floats:
    """Discrete Gaussian noise by rejection from discrete Laplace noise (Canonne, Kamath and Steinke 2020, alg. 3)."""
    scale = math.floor(stddev) + 1
    fade, accepted = -math.expm1(-1 / scale), np.empty(0)
    while len(accepted) < count:
        tried = (rng.geometric(fade, 2 * count) - rng.geometric(fade, 2 * count)).astype(np.float64)
        kept = np.exp(-((np.abs(tried) - stddev**2 / scale) ** 2) / (2 * stddev**2))
        accepted = np.concatenate([accepted, tried[rng.random(2 * count) < kept]])
    return accepted[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianParameters(BudgetParameters):
    """A plan of discrete Gaussian noise."""

    stddev: float | None = None
    sensitivity: int | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="discrete-gaussian",
        parameters=DiscreteGaussianParameters,
        fields={"stddev": ("stddev", None), "sensitivity": ("sensitivity", 1), **OF_STEPS},
        solved={"stddev": "stddev"},
    ),
    cells=fixed_cells(_outcome_cells),
    once=_once,
    draw=_draw,
    statements={
        "contribution": ("one example changes the whole number that noise is added to by its sensitivity at most",),
    },
)
