"""Gaussian noise on banded combinations of steps' sums: one sampled Gaussian per visit of an example's part.

The distance between steps in which an example takes part is at least the number of bands, so no row of C X holds two of
its contributions. The rows that hold the contribution of one step are together one sampled Gaussian whose sensitivity
is the norm of a column, whatever was released before: docs/mechanisms.md#correlated-noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import BandedGaussian, SampledGaussian

#: Column norms slightly below 1 count as 1; larger ones are rounded up.
_ONE, _UP = 1 - 1e-12, 1 + 2.0**-50
_SAMPLED = sampled_gaussian.ROW


def visits_of(event: BandedGaussian) -> SampledGaussian:
    """The sampled Gaussian equivalent to an example's visits, of which it has the largest possible number."""
    norm = math.hypot(*event.coefficients)
    length = 1.0 if _ONE <= norm <= 1 + 2.0**-52 else norm * _UP
    return SampledGaussian(
        noise_multiplier=event.noise_multiplier / length, sample_rate=event.rates[0], steps=event.visits
    )


def _pair(event: BandedGaussian, lower: bool) -> RepeatedPair:
    return _SAMPLED.pair(visits_of(event), lower)


def _divergences(event: BandedGaussian, alphas: Floats) -> Floats:
    """The divergences of all visits, spread over all steps."""
    return _SAMPLED.divergences(visits_of(event), alphas) * (event.visits / event.steps)


def _for_floor(event: BandedGaussian) -> BandedGaussian:
    rate = _SAMPLED.for_floor(visits_of(event)).sample_rate
    return event if rate == event.rates[0] else replace(event, sample_rate=rate / event.bands)


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    shift=lambda event: _SAMPLED.shift(visits_of(event)),
    full_shift=lambda event: _SAMPLED.full_shift(visits_of(event)),
    extreme=lambda event: _SAMPLED.extreme(visits_of(event)),
    for_floor=_for_floor,
    guess=lambda event, epsilon, delta: _SAMPLED.guess(visits_of(event), epsilon, delta),
    quick=lambda event: _SAMPLED.quick(visits_of(event)),
)
