"""Gaussian noise on buffered combinations of steps' sums, for passes in a fixed order: equivalent to one Gaussian.

The steps in which a record takes part are not secret, so nothing is amplified. The record changes C X most if all its
contributions have the same direction (docs/mechanisms.md#buffered-noise).
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
    return _sensitivity(matrix, event.steps_per_pass, event.steps) / event.noise_multiplier


@lru_cache(maxsize=64)
def _sensitivity(matrix: BufferedMatrix, steps_per_pass: int, steps: int) -> float:
    return sensitivity(matrix, steps_per_pass, steps)


def _pair(event: BufferedGaussian, lower: bool) -> RepeatedPair:
    return RepeatedPair(Gaussian(_shift(event) / math.sqrt(event.steps)), event.steps)


def _divergences(event: BufferedGaussian, alphas: Floats) -> Floats:
    """The divergences of the whole run, spread over its steps."""
    shift = _shift(event)
    return alphas * (shift * shift / 2 / event.steps)  # the product overflows to inf, where ** would raise


def _for_floor(event: BufferedGaussian) -> BufferedGaussian:
    """The event with the noise increased by the possible excess of the computed sensitivity."""
    return replace(event, noise_multiplier=event.noise_multiplier * (1 + 16 * (event.steps + 16) * 2.0**-53))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    shift=_shift,
    full_shift=_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6,
    for_floor=_for_floor,
)
