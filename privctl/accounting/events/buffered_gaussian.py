"""Gaussian noise on buffered combinations of steps' sums, of passes in one order: one Gaussian in all.

In which steps a record takes part is known, so nothing is amplified: what it adds to the rows of C X, wherever its
contributions point, is no longer than where they all point the same way (docs/mechanisms.md#buffered-noise).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from privctl.accounting.buffered import BufferedMatrix, sensitivity
from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import BufferedGaussian


def _shift(event: BufferedGaussian) -> float:
    matrix = BufferedMatrix(first=event.first, weights=event.weights, decays=event.decays)
    return _moved(matrix, event.steps_per_pass, event.steps) / event.noise_multiplier


@lru_cache(maxsize=64)
def _moved(matrix: BufferedMatrix, steps_per_pass: int, steps: int) -> float:
    return sensitivity(matrix, steps_per_pass, steps)


def _pair(event: BufferedGaussian, lower: bool) -> RepeatedPair:
    return RepeatedPair(Gaussian(_shift(event) / math.sqrt(event.steps)), event.steps)


def _divergences(event: BufferedGaussian, alphas: Floats) -> Floats:
    """The whole run's divergences, spread over its steps."""
    shift = _shift(event)
    return alphas * (shift * shift / 2 / event.steps)  # inf, where ** raises


def _for_floor(event: BufferedGaussian) -> BufferedGaussian:
    """With as much more noise as the sensitivity may be too large by."""
    return replace(event, noise_multiplier=event.noise_multiplier * (1 + 16 * (event.steps + 16) * 2.0**-53))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    shift=_shift,
    full_shift=_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6,
    for_floor=_for_floor,
)
