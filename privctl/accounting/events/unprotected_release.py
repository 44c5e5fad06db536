"""A release without noise: every outcome may reveal everything."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import UnprotectedRelease

#: The logarithm of a negligible probability.
_UNLIKELY = -690.0


def _pair(event: UnprotectedRelease, lower: bool) -> RepeatedPair:
    """The pair with all mass at infinite loss; the grid needs a finite loss, which has negligible mass."""
    return RepeatedPair(Atoms((0.0,), (_UNLIKELY,), infinite=1.0), 1)


def _divergences(event: UnprotectedRelease, alphas: Floats) -> Floats:
    return np.full(len(alphas), math.inf)


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    full_shift=lambda event: math.inf,
    extreme=lambda event: True,
)
