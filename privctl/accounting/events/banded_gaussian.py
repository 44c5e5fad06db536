"""Gaussian noise on banded combinations of steps' sums: a sampled Gaussian for each turn of an example's part.

An example takes part in steps at least as far apart as there are bands, so no row of C X holds two of its
contributions. Those rows that hold the one of a step, seen together, are one sampled Gaussian of sensitivity the norm
of a column, whatever was seen before: docs/mechanisms.md#correlated-noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import BandedGaussian, SampledGaussian

#: Columns this little shorter than 1 count as 1; longer ones count in full, rounded up.
_ONE, _UP = 1 - 1e-12, 1 + 2.0**-50
_SAMPLED = sampled_gaussian.ROW


def turns_of(event: BandedGaussian) -> SampledGaussian:
    """What an example's turns amount to, the most that there can be of them."""
    norm = math.hypot(*event.coefficients)
    length = 1.0 if _ONE <= norm <= 1 + 2.0**-52 else norm * _UP
    return SampledGaussian(
        noise_multiplier=event.noise_multiplier / length, sample_rate=event.rates[0], steps=event.visits
    )


def _pair(event: BandedGaussian, lower: bool) -> RepeatedPair:
    return _SAMPLED.pair(turns_of(event), lower)


def _divergences(event: BandedGaussian, alphas: Floats) -> Floats:
    """The turns' divergences, spread over all steps."""
    return _SAMPLED.divergences(turns_of(event), alphas) * (event.visits / event.steps)


def _for_floor(event: BandedGaussian) -> BandedGaussian:
    rate = _SAMPLED.for_floor(turns_of(event)).sample_rate
    return event if rate == event.rates[0] else replace(event, sample_rate=rate / event.bands)


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    shift=lambda event: _SAMPLED.shift(turns_of(event)),
    full_shift=lambda event: _SAMPLED.full_shift(turns_of(event)),
    extreme=lambda event: _SAMPLED.extreme(turns_of(event)),
    for_floor=_for_floor,
    guess=lambda event, epsilon, delta: _SAMPLED.guess(turns_of(event), epsilon, delta),
    quick=lambda event: _SAMPLED.quick(turns_of(event)),
)
