"""The privacy loss of steps whose noise together is one Gaussian's, spread over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import BufferedGaussian, TreeGaussian

_Event = TypeVar("_Event", TreeGaussian, BufferedGaussian)


def pair_of(shift: Callable[[_Event], float]) -> Callable[[_Event, bool], RepeatedPair]:
    """The pairs of steps whose means are ``shift`` standard deviations apart in all."""
    return lambda event, lower: RepeatedPair(Gaussian(shift(event) / math.sqrt(event.steps)), event.steps)


def divergences_of(shift: Callable[[_Event], float]) -> Callable[[_Event, Floats], Floats]:
    """The Renyi divergences of one of these steps, at each order."""

    def divergences(event: _Event, alphas: Floats) -> Floats:
        whole = shift(event)
        return alphas * (whole * whole / 2 / event.steps)  # the product overflows to inf, where ** would raise

    return divergences
