"""Gaussian noise on a number that the record shifts by a random amount."""

from __future__ import annotations

import math

import numpy as np

from privctl.domain.events import MixtureOfGaussians
from privctl.domain.guarantee import Adjacency
from verify.events.row import (
    CellMaker,
    Draw,
    EventVerification,
    Floats,
    PlannedAs,
    poisson_unless_all,
)
from verify.losses.cells import gaussian_mixture


def _cells(event: MixtureOfGaussians, attained_only: bool) -> CellMaker:
    moves, weights = _moves(event)
    return lambda width, reach: gaussian_mixture(moves, weights, event.noise_stddev, width, reach)


def _moves(event: MixtureOfGaussians) -> tuple[Floats, Floats]:
    """The possible shifts, including 0, and their probabilities."""
    chances = np.array(event.probabilities) * (event.sample_rate / math.fsum(event.probabilities))
    moves: Floats = np.unique(np.append(event.sensitivities, 0.0))
    where = np.searchsorted(moves, np.append(event.sensitivities, 0.0))
    weights: Floats = np.bincount(where, np.append(chances, 1 - event.sample_rate)).astype(np.float64)
    return moves, weights


def _squared_shift(event: MixtureOfGaussians) -> float | None:
    """The squared shift of all steps in standard deviations if only one shift is possible, else None."""
    moves, weights = _moves(event)
    possible = moves[weights > 0]
    return float(event.steps * (possible[0] / event.noise_stddev) ** 2) if len(possible) == 1 else None


def _draw(event: MixtureOfGaussians) -> Draw:
    moves, weights = _moves(event)
    weights = weights / weights.sum()
    variance = event.noise_stddev**2

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        seen = event.noise_stddev * rng.standard_normal(count)
        if present:
            seen += rng.choice(moves, count, p=weights)
        likelihood = np.exp(np.multiply.outer(seen, moves) / variance - moves**2 / (2 * variance)) @ weights
        return np.asarray(np.log(likelihood))

    return draw


ROW = EventVerification(
    planned=PlannedAs(mechanism="gaussian-mixture", fields={}),
    neighbours=lambda event: Adjacency.ADD_OR_REMOVE,
    chances=lambda event: (event.sample_rate if any(a * p for a, p in zip(*_moves(event), strict=True)) else 0.0,),
    drawn=lambda event: poisson_unless_all(event.sample_rate),
    cells=_cells,
    squared_shift=_squared_shift,
    draw=_draw,
    statements={
        "contribution": ("one example changes what noise is added to by a random amount, of the stated law at most",),
    },
)
