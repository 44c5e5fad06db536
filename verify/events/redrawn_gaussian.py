"""Gaussian noise on batches drawn with replacement.

Each of k places holds the record with probability 1 / n. Removing it leaves k places with other examples, so the J
places that held it change by two clip norms each; this is attained if the others are opposite to it. Replacing or
zeroing it changes J places too, but batches without it remain possible. For the bound, a label j reveals J if J > 0 and
is made up otherwise. If the label is true with probability h, the likelihood ratio is 1 - h + h r, where r is that of a
Gaussian shifted by 2 j.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privctl.domain.events import Batches, RedrawnGaussian
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events.row import CellMaker, Draw, EventVerification, Floats, PlannedAs
from verify.losses.cells import (
    CellReach,
    LossCells,
    binomial_law,
    doubled_moves,
    gaussian_mixture,
    most_revealing,
    observed_mixture,
    symmetrize,
)


def _law(event: RedrawnGaussian) -> tuple[Floats, float]:
    """The probabilities of 0, 1, 2, ... places with the record, and the mass cut off."""
    return binomial_law([1 / event.examples] * event.draws)


def _cells(event: RedrawnGaussian, attained_only: bool) -> CellMaker:
    law, lost = _law(event)
    moves, noise = np.arange(len(law), dtype=np.float64), event.noise_multiplier
    if attained_only and event.neighbours is Adjacency.ZERO_OUT:
        return lambda width, reach: _zeroed_cells(moves, law, noise, width, reach)
    if attained_only:  # attained if all other records are opposite to the record, and so is its replacement
        return lambda width, reach: gaussian_mixture(2 * moves, law, noise, width, reach)
    if event.neighbours is Adjacency.ADD_OR_REMOVE:
        return lambda width, reach: _with_lost(gaussian_mixture(2 * moves, law, noise, width, reach), lost)
    return lambda width, reach: _replaced_cells(law, lost, noise, width, reach)


def _replaced_cells(law: Floats, lost: float, noise: float, width: float, reach: CellReach) -> LossCells:
    """Cells for the labelled Gaussians shifted by 2 j, in either order."""
    times = np.flatnonzero(law[1:]) + 1
    true, least = law[times], times[0]
    by_cost = np.log(true / true[0]) + 2 * np.log(times / least) + 2 * (times**2 - float(least) ** 2) / noise / noise
    made_up = np.exp(np.minimum(by_cost, -math.log(4) * (times - least)))
    chances = true + law[0] * made_up / made_up.sum()
    parts = [
        (chance, gaussian_mixture(np.array([0.0, 2.0 * j]), np.array([1 - rate, rate]), noise, width, reach))
        for j, chance, rate in zip(times, chances, true / chances, strict=True)
    ]
    return symmetrize(_with_lost(observed_mixture(parts), lost))


def _zeroed_cells(moves: Floats, law: Floats, noise: float, width: float, reach: CellReach) -> LossCells:
    """Attained cells if the other records contribute nothing, or the opposite of the record, whichever reveals more.

    In the second case each place shifts the sum by 2 with the record and by 1 with the zeroed record.
    """
    return most_revealing([make(moves, law, noise, width, reach) for make in (gaussian_mixture, doubled_moves)])


def _with_lost(cells: LossCells, lost: float) -> LossCells:
    return replace(cells, p_infinite=cells.p_infinite + lost)


def _draw(event: RedrawnGaussian) -> Draw | None:
    if event.neighbours is not Adjacency.ADD_OR_REMOVE:
        return None
    law, _ = _law(event)
    moves, variance = 2 * np.arange(len(law)), event.noise_multiplier**2

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        """Draws losses for data in which the record contributes 1 and all others -1, filling places one by one."""
        places = rng.integers(0, event.examples, (event.draws, count)) if present else np.ones((event.draws, count))
        sums = np.where(places == 0, 1.0, -1.0).sum(0)
        seen = sums + event.draws + event.noise_multiplier * rng.standard_normal(count)
        likelihood = np.exp(np.multiply.outer(seen, moves) / variance - moves**2 / (2 * variance)) @ law
        return np.asarray(np.log(likelihood))

    return draw


def _chance(event: RedrawnGaussian) -> float:
    """The probability that the record is drawn at all."""
    return 1 - (1 - 1 / event.examples) ** event.draws


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrawnParameters(BudgetParameters):
    """A plan of batches drawn with replacement."""


def _sizes(parameters: Any) -> Mapping[str, Any]:
    if parameters.dataset_size is None or parameters.batch_size is None:
        return {}
    return {"examples": parameters.dataset_size, "draws": parameters.batch_size}


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="with-replacement",
        parameters=RedrawnParameters,
        fields={"noise_multiplier": ("noise_multiplier", None), "steps": ("steps", 1)},
        solved={"noise multiplier": "noise_multiplier"},
        more=_sizes,
    ),
    neighbours=lambda event: event.neighbours,
    chances=lambda event: (_chance(event),),
    drawn=lambda event: Batches.WITH_REPLACEMENT,
    cells=_cells,
    zeroed=lambda event: event.neighbours is Adjacency.ZERO_OUT,
    attained=lambda event: event.neighbours is Adjacency.ADD_OR_REMOVE,
    tilt=lambda event: event.noise_multiplier / math.sqrt(event.steps),
    draw=_draw,
    noise=lambda event: event.noise_multiplier,
    with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
    statements={
        "contribution": (
            "one example changes what noise is added to by the clip norm at most, each time that it is drawn",
        ),
    },
)
