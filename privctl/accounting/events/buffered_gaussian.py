"""Gaussian noise on buffered combinations of steps' sums, for passes in a fixed order: equivalent to one Gaussian.

The steps in which a record takes part are not secret, so nothing is amplified. The record changes C X most if all its
contributions have the same direction (docs/mechanisms.md#buffered-noise).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from privctl.accounting.buffered import BufferedMatrix, sensitivity
from privctl.accounting.events.one_gaussian import divergences_of, pair_of
from privctl.accounting.events.row import EventAccounting
from privctl.domain.events import BufferedGaussian


def _shift(event: BufferedGaussian) -> float:
    matrix = BufferedMatrix(first=event.first, weights=event.weights, decays=event.decays)
    return _sensitivity(matrix, event.steps_per_pass, event.steps) / event.noise_multiplier


@lru_cache(maxsize=64)
def _sensitivity(matrix: BufferedMatrix, steps_per_pass: int, steps: int) -> float:
    return sensitivity(matrix, steps_per_pass, steps)


def _for_floor(event: BufferedGaussian) -> BufferedGaussian:
    """The event with the noise increased by the possible excess of the computed sensitivity."""
    return replace(event, noise_multiplier=event.noise_multiplier * (1 + 16 * (event.steps + 16) * 2.0**-53))


ROW = EventAccounting(
    pair=pair_of(_shift),
    divergences=divergences_of(_shift),
    shift=_shift,
    full_shift=_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6,
    for_floor=_for_floor,
)
