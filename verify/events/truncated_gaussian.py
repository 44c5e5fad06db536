"""Gaussian noise on truncated Poisson batches: of a larger batch, a random subset of the stated size is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb, ctx

from privctl.domain.events import Batches, TruncatedGaussian
from privctl.reports.parameters import BudgetParameters
from verify.events.row import OF_STEPS, CellMaker, Draw, Floats, PlannedAs, PoissonVerification
from verify.events.toy_training import gaussian_loss, toy_training
from verify.losses.cells import CellReach, LossCells, gaussian_mixture, observed_mixture

_BITS = 256


def _tail(at_least: int, trials: int, rate: float) -> arb:
    """P(Binomial(trials, rate) >= at_least), by the regularized incomplete beta function."""
    if at_least > trials:
        return arb(0)
    if rate == 1:
        return arb(1)
    before = ctx.prec
    ctx.prec = _BITS
    try:
        return arb(rate).beta_lower(at_least, trials - at_least + 1, regularized=1)
    finally:
        ctx.prec = before


@lru_cache(maxsize=64)
def _chances(event: TruncatedGaussian) -> tuple[float, float, float]:
    """The probabilities that the other records fill a batch, that the record is then kept, and that it is taken at all.

    The first two are rounded up, the last one is rounded down.
    """
    size, records, rate = event.largest_batch, event.examples, event.sample_rate
    full = _tail(size, records - 1, rate)
    # If the record is drawn along with M >= size others, it is kept with probability size / (M + 1).
    kept = _tail(size + 1, records, rate) * size / records
    given = float((kept / full).upper()) if bool(full > 0) else 0.0
    return float(full.upper()), min(1.0, given), float((kept + rate * (1 - full)).lower())


def _cells(event: TruncatedGaussian, attained_only: bool) -> CellMaker:
    full, replaced, taken = _chances(event)
    if attained_only:  # attained if all other records contribute nothing
        return lambda width, reach: _moved(event.noise_multiplier, 1.0, taken, width, reach)

    def cells(width: float, reach: CellReach) -> LossCells:
        usual = _moved(event.noise_multiplier, 1.0, event.sample_rate, width, reach)
        if full == 0:
            return usual
        swapped = _moved(event.noise_multiplier, 2.0, replaced, width, reach)
        return observed_mixture([(1 - min(full, 1.0), usual), (min(full, 1.0), swapped)])

    return cells


def _moved(noise: float, by: float, rate: float, width: float, reach: CellReach) -> LossCells:
    """Cells of a noisy sum that shifts by ``by`` clip norms with probability ``rate``."""
    return gaussian_mixture(np.array([0.0, by]), np.array([1 - rate, rate]), noise, width, reach)


def _draw(event: TruncatedGaussian) -> Draw:
    """Draws losses for data in which all other records contribute nothing."""
    sigma, taken = event.noise_multiplier, _chances(event)[2]

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        x = sigma * rng.standard_normal(count)
        if present:
            x += rng.random(count) < taken
        return gaussian_loss(x, sigma, taken)

    return draw


def _toy(event: TruncatedGaussian) -> Callable[[int], Draw]:
    return lambda steps: toy_training(event, steps, taken=_chances(event)[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedParameters(BudgetParameters):
    """A plan of truncated Poisson batches of at most ``largest_batch`` records."""

    largest_batch: int | None = None


def _records(parameters: Any) -> Mapping[str, Any]:
    return {} if parameters.dataset_size is None else {"examples": parameters.dataset_size}


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="truncated-poisson",
        parameters=TruncatedParameters,
        fields={
            "noise_multiplier": ("noise_multiplier", None), "largest_batch": ("largest_batch", None), **OF_STEPS,
        },
        solved={"noise multiplier": "noise_multiplier"},
        more=_records,
    ),
    drawn=lambda event: Batches.TRUNCATED_POISSON,
    cells=_cells,
    zeroed=lambda event: False,
    attained=lambda event: False,
    tilt=lambda event: event.noise_multiplier / math.sqrt(event.steps) if event.sample_rate < 1 else 0.0,
    draw=_draw,
    toy=_toy,
    noise=lambda event: event.noise_multiplier,
    with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
    in_floats=True,
)  # fmt: skip
