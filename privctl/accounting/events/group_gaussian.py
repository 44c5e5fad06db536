"""Gaussian noise on Poisson batches, as it protects all records of a group together.

Given the rest of a batch, the number K of the group's k records in it is binomial with the sampling rate, and they
change the sum by at most K clip norms. So the dominating pair is the mixture of N(j, sigma^2) with binomial weights
against N(0, sigma^2) (Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians
mechanisms"), which is attained by records with equal contributions.
"""

from __future__ import annotations

import math

from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import GaussianMixture
from privctl.accounting.poisson_binomial import TAIL_OF_LOSSES, Floats, poisson_binomial
from privctl.domain.events import GroupGaussian


def _pair(event: GroupGaussian, lower: bool) -> RepeatedPair:
    law = poisson_binomial((event.sample_rate,) * event.group_size, TAIL_OF_LOSSES)
    mixture = GaussianMixture(
        shifts=tuple(law.shifts.tolist()),
        weights=tuple(law.weights.tolist()),
        stddev=event.noise_multiplier,
        lost=0.0 if lower else law.tail_mass,
    )
    return RepeatedPair(mixture, event.steps)


def _divergences(event: GroupGaussian, alphas: Floats) -> Floats:
    if event.sample_rate == 0:
        return 0.0 * alphas
    if event.sample_rate == 1:
        shift = event.group_size / event.noise_multiplier
        return alphas / 2 * (shift * shift)
    raise ValueError("for a group in Poisson batches it is known in one order of the neighbours only")


def _full_shift(event: GroupGaussian) -> float:
    """The shift if all records of the group took part in every step."""
    return math.sqrt(event.steps) * event.group_size / event.noise_multiplier


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="noise_multiplier"),
    shift=lambda event: _full_shift(event) if event.sample_rate == 1 else None,
    full_shift=_full_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6 * event.group_size,
)
