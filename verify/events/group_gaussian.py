"""Gaussian noise on Poisson batches, for neighbours that differ by all records of a group."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from privctl.domain.events import GroupGaussian
from privctl.reports.parameters import BudgetParameters
from verify.events.row import OF_STEPS, CellMaker, Draw, Floats, PlannedAs, PoissonVerification
from verify.losses.cells import CellReach, LossCells, binomial_law, gaussian_mixture


def _cells(event: GroupGaussian, attained_only: bool) -> CellMaker:
    return lambda width, reach: _group_cells(event, width, reach, attained_only)


def _group_cells(event: GroupGaussian, width: float, reach: CellReach, attained_only: bool) -> LossCells:
    """Cells for the noisy number of group members in a batch, all with the same contribution."""
    law, lost = binomial_law([event.sample_rate] * event.group_size)
    cells = gaussian_mixture(np.arange(len(law), dtype=np.float64), law, event.noise_multiplier, width, reach)
    return replace(cells, p_infinite=cells.p_infinite + (0.0 if attained_only else lost))


def _draw(event: GroupGaussian) -> Draw:
    law, _ = binomial_law([event.sample_rate] * event.group_size)
    moves, variance = np.arange(len(law)), event.noise_multiplier**2

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        seen = event.noise_multiplier * rng.standard_normal(count)
        if present:
            seen += rng.binomial(event.group_size, event.sample_rate, count)
        likelihood = np.exp(np.multiply.outer(seen, moves) / variance - moves**2 / (2 * variance)) @ law
        return np.asarray(np.log(likelihood))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParameters(BudgetParameters):
    """A plan for a group of ``group_size`` records."""

    group_size: int | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="group-gaussian",
        parameters=GroupParameters,
        fields={"noise_multiplier": ("noise_multiplier", None), "group_size": ("group_size", None), **OF_STEPS},
        solved={"noise multiplier": "noise_multiplier"},
    ),
    group_size=lambda event: event.group_size,
    chances=lambda event: [event.sample_rate] * event.group_size,
    cells=_cells,
    squared_shift=lambda event: (
        event.steps * (event.group_size / event.noise_multiplier) ** 2 if event.sample_rate == 1 else None
    ),
    tilt=lambda event: event.noise_multiplier / math.sqrt(event.steps) if event.sample_rate < 1 else 0.0,
    draw=_draw,
    noise=lambda event: event.noise_multiplier,
    with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
    in_floats=True,
    statements={
        "contribution": (
            "one example is a group of records, each of which enters batches on its own and changes what noise is "
            "added to by the clip norm at most",
        ),
    },
)
