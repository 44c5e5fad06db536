"""A release without noise, which may reveal with certainty whether the record is present."""

from __future__ import annotations

import numpy as np

from privctl.domain.events import UnprotectedRelease
from verify.events.row import EventVerification, PlannedAs, fixed_cells
from verify.losses.cells import LossCells


def _full_disclosure(event: UnprotectedRelease) -> LossCells:
    zero, least = np.zeros(1), np.full(1, 1e-300)  # a grid needs some finite loss
    return LossCells(low=zero, high=zero, p=least, q=least, up=zero, p_infinite=1.0, q_infinite=1.0)


ROW = EventVerification(
    planned=PlannedAs(mechanism="non-private", fields={}),
    neighbours=lambda event: event.neighbours,
    chances=lambda event: (1.0,),
    drawn=lambda event: None,
    cells=fixed_cells(_full_disclosure),
    statements={"contribution": ("a release without noise may show one example as it is",)},
)
