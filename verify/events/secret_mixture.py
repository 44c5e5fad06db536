"""A secret in several records, each drawn with its own probability, under Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privctl.domain.events import Batches, SecretMixture
from privctl.domain.guarantee import Adjacency, PrivacyUnit
from privctl.reports.parameters import BudgetParameters
from verify.events.row import CellMaker, EventVerification, PlannedAs
from verify.losses.cells import CellReach, LossCells, binomial_law, gaussian_mixture
from verify.losses.secret import information


def _cells(event: SecretMixture, attained_only: bool) -> CellMaker:
    return lambda width, reach: _cells_of(event, width, reach)


def _cells_of(event: SecretMixture, width: float, reach: CellReach) -> LossCells:
    """Cells of the noisy number of a secret's records in a batch, against none."""
    law, lost = binomial_law(event.probabilities)
    cells = gaussian_mixture(np.arange(len(law), dtype=np.float64), law, event.noise_multiplier, width, reach)
    return replace(cells, p_infinite=cells.p_infinite + lost)


def _squared_shift(event: SecretMixture) -> float | None:
    """The squared shift of all steps if all records take part in every step, else None."""
    if any(chance != 1 for chance in event.probabilities):
        return None
    return event.steps * (len(event.probabilities) / event.noise_multiplier) ** 2


def _records(parameters: SecretParameters) -> Mapping[str, Any]:
    return {"probabilities": tuple(_chances(parameters.records or ()))}


def _chances(records: Sequence[str]) -> Iterator[float]:
    """Yields the probabilities that each P or PxCOUNT stands for."""
    for text in records:
        chance, _, count = text.partition("x")
        try:
            yield from [float(chance)] * int(count or 1)
        except ValueError:
            yield math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretParameters(BudgetParameters):
    """A plan for one secret; ``records`` are the sampling probabilities of its records, P or PxCOUNT."""

    records: tuple[str, ...] | None = None


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="secret",
        parameters=SecretParameters,
        fields={"noise_multiplier": ("noise_multiplier", None), "steps": ("steps", 1)},
        solved={"noise multiplier": "noise_multiplier"},
        more=_records,
    ),
    neighbours=lambda event: Adjacency.ZERO_OUT,
    chances=lambda event: event.probabilities,
    drawn=lambda event: None if all(chance == 1 for chance in event.probabilities) else Batches.POISSON,
    cells=_cells,
    squared_shift=_squared_shift,
    unit=PrivacyUnit.SECRET,
    information=information,
    noise=lambda event: event.noise_multiplier,
)
