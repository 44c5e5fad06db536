"""Gaussian noise on banded combinations of the steps' sums, where parts of the data take turns.

The release is y_t = c_0 x_t + ... + c_(b-1) x_(t-b+1) + z_t with independent z_t. A record of part p contributes to x_t
only if t mod b = p, so each y_t contains at most one of its contributions. The contribution of step t moves y_t up to
y_(t+b-1) by (c_0, ..., c_(b-1)) times itself. Given all earlier releases, the coin for step t and the noise of these
rows are independent, so this is one sampled Gaussian whose shift is the norm of c. There is one for each t of its part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flint import arb, ctx

from privctl.domain.events import BandedGaussian, Batches, Event, SampledGaussian
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events import sampled_gaussian
from verify.events.row import OF_STEPS, CellMaker, DeltaOfRatio, Draw, EventVerification, Floats, PlannedAs
from verify.events.toy_training import gaussian_loss

#: The precision in bits for summing squares.
_BITS = 256
#: Norms up to this count as 1: the excess is rounding of the report's own coefficients.
_ROUNDED = 1 + 2.0**-51
_TURN = sampled_gaussian.ROW


def column_norm(coefficients: tuple[float, ...]) -> tuple[float, float]:
    """Lower and upper bounds on the norm of a column of the matrix, in ball arithmetic."""
    before = ctx.prec
    ctx.prec = _BITS
    try:
        norm = sum((arb(value) ** 2 for value in coefficients), arb(0)).sqrt()
        return float(norm.lower()), float(norm.upper())
    finally:
        ctx.prec = before


def turn_of(event: BandedGaussian) -> SampledGaussian:
    """One turn of the record's part as a sampled Gaussian: noise relative to the move of the rows, and its rate."""
    low, high = column_norm(event.coefficients)
    move = 1.0 if abs(low - 1) < 1e-12 and high <= _ROUNDED else high
    return SampledGaussian(
        noise_multiplier=event.noise_multiplier / move,
        sample_rate=min(1.0, event.sample_rate * len(event.coefficients)),
    )


def turns(event: BandedGaussian) -> int:
    """The number of turns of the first part."""
    return len(range(0, event.steps, len(event.coefficients)))


def _parts(event: BandedGaussian) -> list[tuple[Event, int]]:
    return [(turn_of(event), turns(event))]


def _cells(event: BandedGaussian, attained_only: bool) -> CellMaker:
    return _TURN.cells(turn_of(event), attained_only)


def _drawn(event: BandedGaussian) -> Batches | None:
    if len(event.coefficients) > 1:
        return Batches.CYCLIC_POISSON
    return None if event.sample_rate == 1 else Batches.POISSON


def _squared_shift(event: BandedGaussian) -> float | None:
    once = _TURN.squared_shift(turn_of(event))
    return None if once is None else once * turns(event)


def _once(event: BandedGaussian) -> DeltaOfRatio | None:
    return _TURN.once(turn_of(event))


def _toy(event: BandedGaussian) -> Callable[[int], Draw]:
    return lambda steps: toy_training(event, steps)


def toy_training(event: BandedGaussian, steps: int, *, noise: float = 1.0) -> Draw:
    """Draws losses of runs of ``steps`` steps that release C X + Z, for a record of the first part.

    Its gradient has clip norm along an axis of its own. ``noise`` scales the noise that is added: 1 is correct, and 0.5
    is a fault that a test must detect.
    """
    bands, sigma = len(event.coefficients), event.noise_multiplier
    column = np.array(event.coefficients)
    rate = min(1.0, event.sample_rate * bands)

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        losses = np.zeros(count)
        for first in range(0, steps, bands):
            rows = column[: steps - first]
            seen = noise * sigma * rng.standard_normal((count, len(rows)))
            if present:
                seen += rows * (rng.random((count, 1)) < rate)
            # Projected onto the column; in units of the column's length, the record moves this by the length.
            length = float(np.sqrt(rows @ rows))
            losses += gaussian_loss(seen @ rows / length**2, sigma / length, rate)
        return losses

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedParameters(BudgetParameters):
    """A plan of banded noise; ``bands`` is absent if the plan chose their number."""

    bands: int | None = None


def _more(parameters: Any) -> dict[str, Any]:
    return {} if parameters.bands is None else {"bands": parameters.bands}


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="banded",
        parameters=BandedParameters,
        fields={"noise_multiplier": ("noise_multiplier", None), **OF_STEPS},
        solved={"noise multiplier": "noise_multiplier"},
        more=_more,
    ),
    neighbours=lambda event: Adjacency.ADD_OR_REMOVE,
    chances=lambda event: (turn_of(event).sample_rate,),
    drawn=_drawn,
    cells=_cells,
    parts=_parts,
    squared_shift=_squared_shift,
    tilt=lambda event: _TURN.tilt(turn_of(event)),
    once=_once,
    toy=_toy,
    noise=lambda event: event.noise_multiplier,
    with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
    in_floats=True,
)
