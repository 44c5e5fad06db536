"""Gaussian noise on Poisson batches, for neighbours in which a record's contribution is replaced by its opposite."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privctl.domain.events import ReplacedGaussian
from privctl.domain.guarantee import Adjacency
from verify.events.row import OF_STEPS, CellMaker, DeltaOfRatio, Draw, Floats, PlannedAs, PoissonVerification
from verify.losses.opposite_records import opposite_cells, opposite_delta


def _cells(event: ReplacedGaussian, attained_only: bool) -> CellMaker:
    return lambda width, reach: opposite_cells(event.noise_multiplier, event.sample_rate, width, reach)


def _once(event: ReplacedGaussian) -> DeltaOfRatio | None:
    if event.noise_multiplier < 1e-3 or event.sample_rate == 1:
        return None
    return lambda ratio: opposite_delta(event.noise_multiplier, event.sample_rate, ratio)


def _draw(event: ReplacedGaussian) -> Draw:
    noise, rate = event.noise_multiplier, event.sample_rate

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        seen = noise * rng.standard_normal(count) + (1 if present else -1) * (rng.random(count) < rate)
        densities = [
            (1 - rate) * np.exp(-(seen**2) / (2 * noise**2)) + rate * np.exp(-((seen - at) ** 2) / (2 * noise**2))
            for at in (1, -1)
        ]
        return np.asarray(np.log(densities[0] / densities[1]))

    return draw


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="replace-one-gaussian",
        fields={"noise_multiplier": ("noise_multiplier", None), **OF_STEPS},
        solved={"noise multiplier": "noise_multiplier"},
    ),
    neighbours=lambda event: Adjacency.REPLACE_ONE,
    cells=_cells,
    squared_shift=lambda event: event.steps * (2 / event.noise_multiplier) ** 2 if event.sample_rate == 1 else None,
    tilt=lambda event: event.noise_multiplier / math.sqrt(event.steps) if event.sample_rate < 1 else 0.0,
    once=_once,
    draw=_draw,
    noise=lambda event: event.noise_multiplier,
    with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
)
