"""Gaussian noise on clipped sums, with Poisson batches, batches in passes, or batches of fixed size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flint import arb

from privctl.domain.events import Batches, SampledGaussian
from privctl.domain.guarantee import Adjacency
from verify.events.row import OF_STEPS, CellMaker, DeltaOfRatio, Draw, EventVerification, Floats, PlannedAs
from verify.events.toy_training import gaussian_loss, pass_losses, toy_training
from verify.losses.cells import (
    CellReach,
    LossCells,
    gaussian_mixture,
    plain_gaussian,
    symmetrize,
)
from verify.losses.one_step_a_pass import FINE, ROUGH, pass_cells
from verify.losses.tails import delta_of_tails, normal_above
from verify.losses.visits import visits

#: Cells wider than this are used only for a rough sketch.
_WIDE = 1e3
#: The adjacency for each way of drawing batches.
_NEIGHBOURS = {
    Batches.POISSON: Adjacency.ADD_OR_REMOVE, Batches.SHUFFLED: Adjacency.ZERO_OUT,
    Batches.FIXED_SIZE: Adjacency.REPLACE_ONE, Batches.BALLS_AND_BINS: Adjacency.ADD_OR_REMOVE,
}  # fmt: skip


def _drawn(event: SampledGaussian) -> Batches | None:
    """The condition on batches: none if each batch is the whole data, except for shuffled passes."""
    whole = event.sample_rate == 1 and event.batches is not Batches.SHUFFLED
    return None if whole else event.batches


def _cells(event: SampledGaussian, attained_only: bool) -> CellMaker:
    noise, rate = event.noise_multiplier, event.sample_rate
    if event.batches is Batches.FIXED_SIZE and rate == 1:
        return lambda width, reach: plain_gaussian(2 / noise, width, reach)
    if event.batches is Batches.FIXED_SIZE:
        twice = replace(event, noise_multiplier=noise / 2, batches=Batches.POISSON)
        if attained_only:  # attained if all other records are opposite to the record, and so is its replacement
            return lambda width, reach: _sampled(twice, width, reach)
        return lambda width, reach: symmetrize(_sampled(twice, width, reach))
    if event.batches is Batches.SHUFFLED:
        raise ValueError("passes that take records in turn compose here only with Gaussians that take all")
    if event.batches is Batches.BALLS_AND_BINS and rate < 1:
        return lambda width, reach: _pass_cells(event, width, above=not attained_only)
    if rate == 1:
        return lambda width, reach: plain_gaussian(1 / noise, width, reach)
    return lambda width, reach: _sampled(event, width, reach)


def _pass_cells(event: SampledGaussian, width: float, *, above: bool) -> LossCells:
    """Cells of a balls-and-bins pass, or of the beginning of one; few points for a rough sketch."""
    count = ROUGH if width > _WIDE else FINE
    return pass_cells(event.noise_multiplier, _batches_in_pass(event), event.steps, count, above=above)


def _batches_in_pass(event: SampledGaussian) -> int:
    """The number of batches in a pass, the inverse of the rate."""
    return round(1 / event.sample_rate)


def _parts(event: SampledGaussian) -> list[tuple[SampledGaussian, int]] | None:
    """The whole passes, and the part of the last one that was begun."""
    if event.batches is not Batches.BALLS_AND_BINS or event.sample_rate == 1:
        return None
    whole, begun = divmod(event.steps, _batches_in_pass(event))
    parts = [(replace(event, steps=_batches_in_pass(event)), whole), (replace(event, steps=max(1, begun)), 1)]
    return [part for part, wanted in zip(parts, (whole, begun), strict=True) if wanted]


def _sampled(event: SampledGaussian, width: float, reach: CellReach) -> LossCells:
    """Cells of a noisy clipped sum over a Poisson batch, with losses at most ``width`` apart."""
    mixture = np.array([0.0, 1.0]), np.array([1 - event.sample_rate, event.sample_rate])
    return gaussian_mixture(*mixture, event.noise_multiplier, width, reach)


def _squared_shift(event: SampledGaussian) -> float | None:
    if event.batches is Batches.SHUFFLED:
        return max(visits(event.sample_rate, event.steps)) / event.noise_multiplier**2
    if event.sample_rate == 1:
        reach = 2 if event.batches is Batches.FIXED_SIZE else 1
        return event.steps * (reach / event.noise_multiplier) ** 2
    return None


def _tilt(event: SampledGaussian) -> float:
    return event.noise_multiplier / math.sqrt(event.steps) if event.sample_rate < 1 else 0.0


def _once(event: SampledGaussian) -> DeltaOfRatio | None:
    if event.batches in (Batches.SHUFFLED, Batches.BALLS_AND_BINS) or event.noise_multiplier < 1e-3:
        return None

    def delta(ratio: arb) -> arb:
        mu = (2 if event.batches is Batches.FIXED_SIZE else 1) / arb(event.noise_multiplier)

        def tail(ratio: arb) -> tuple[arb, arb]:
            at = ratio.log() / mu + mu / 2
            return normal_above(at - mu), normal_above(at)

        return delta_of_tails(tail, None, arb(event.sample_rate), ratio)

    return delta


def _draw(event: SampledGaussian) -> Draw | None:
    if event.batches is Batches.BALLS_AND_BINS and event.sample_rate < 1:
        return pass_losses(event)
    if event.batches not in (Batches.POISSON, Batches.BALLS_AND_BINS):
        return None
    sigma, rate = event.noise_multiplier, event.sample_rate

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        x = sigma * rng.standard_normal(count)
        if present:
            x += rng.random(count) < rate
        return gaussian_loss(x, sigma, rate)

    return draw


def _toy(event: SampledGaussian) -> Callable[[int], Draw] | None:
    if event.batches not in (Batches.POISSON, Batches.BALLS_AND_BINS):
        return None
    return lambda steps: toy_training(event, steps)


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="gaussian",
        fields={
            "noise_multiplier": ("noise_multiplier", None), "batches": ("batches", str(Batches.POISSON)), **OF_STEPS,
        },
        solved={"noise multiplier": "noise_multiplier"},
    ),
    neighbours=lambda event: _NEIGHBOURS[event.batches],
    chances=lambda event: (event.sample_rate,),
    drawn=_drawn,
    cells=_cells,
    squared_shift=_squared_shift,
    parts=_parts,
    attained=lambda event: event.batches is not Batches.FIXED_SIZE and _parts(event) is None,
    tilt=_tilt,
    once=_once,
    draw=_draw,
    toy=_toy,
    noise=lambda event: event.noise_multiplier,
    with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
    in_floats=True,
)  # fmt: skip
