"""Gaussian noise on a number that one record changes by a random amount."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting
from privctl.accounting.mixtures import log_moments
from privctl.accounting.pld import pairs
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import MixtureOfGaussians


def _law(event: MixtureOfGaussians) -> dict[float, float]:
    """Amount -> probability, by increasing amount, 0 first; sampling adds to the probability of 0."""
    total = math.fsum(event.probabilities)
    law = {0.0: 1 - event.sample_rate}
    for amount, chance in sorted(zip(event.sensitivities, event.probabilities, strict=True)):
        law[amount] = law.get(amount, 0.0) + event.sample_rate * chance / total
    return {amount: chance for amount, chance in law.items() if chance > 0}


def _pair(event: MixtureOfGaussians, lower: bool) -> RepeatedPair:
    law = _law(event)
    return RepeatedPair(pairs.GaussianMixture(tuple(law), tuple(law.values()), event.noise_stddev), event.steps)


def _divergences(event: MixtureOfGaussians, alphas: Floats) -> Floats:
    """One step of the mixture against no change."""
    law = _law(event)
    weights, shifts = np.array(list(law.values())), np.array(list(law))
    return np.asarray(log_moments(weights, shifts, event.noise_stddev, alphas.tolist()) / (alphas - 1))


def _shift(event: MixtureOfGaussians) -> float | None:
    """The shift if the amount is certain, else None."""
    law = _law(event)
    return None if len(law) > 1 else math.sqrt(event.steps) * max(law) / event.noise_stddev


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    shift=_shift,
    full_shift=lambda event: math.sqrt(event.steps) * max(event.sensitivities) / event.noise_stddev,
    extreme=lambda event: event.noise_stddev < 1e-6 * max(event.sensitivities),
)
