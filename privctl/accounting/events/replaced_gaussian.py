"""Gaussian noise on Poisson batches, as it protects against replacing a record.

Given the rest of a batch, the pair is (1 - q) N(0) + q N(g) against (1 - q) N(0) + q N(g') for contributions g, g' of
norm at most 1. Delta at e^epsilon >= 1 is that of q N(g) against the mixture (1 - q) (e^epsilon - 1) N(0) + q e^epsilon
N(g'), whose components are at most 1 and 2 away from g; a mixture of Gaussians is worst if its components are on a line
at their largest distances (Choquette-Choo, Ganesh, Steinke and Thakurta 2023, lemma 4.5). So g = -g' is worst at every
epsilon (Lebeda, Regehr, Kamath and Steinke 2024, "Avoiding pitfalls for privacy accounting of subsampled mechanisms
under composition"). The pair of fixed-size batches, with a shift of 2, is a looser bound on the same.
"""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.gaussian_pairs import OppositeMixtures
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import ReplacedGaussian


def _pair(event: ReplacedGaussian, lower: bool) -> RepeatedPair:
    return RepeatedPair(OppositeMixtures(1 / event.noise_multiplier, event.sample_rate), event.steps)


def _divergences(event: ReplacedGaussian, alphas: Floats) -> Floats:
    """Those without sampling, or 0 at rate 0; raises ValueError for rates in between."""
    if event.sample_rate in (0, 1):
        return np.asarray(event.sample_rate * alphas * 2 / event.noise_multiplier / event.noise_multiplier)
    raise ValueError("it is not computed for replacing a record of a Poisson batch")


def _full_shift(event: ReplacedGaussian) -> float:
    """The shift if the record took part in every step."""
    return 2 * math.sqrt(event.steps) / event.noise_multiplier


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="noise_multiplier"),
    shift=lambda event: _full_shift(event) if event.sample_rate == 1 else None,
    full_shift=_full_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6,
)
