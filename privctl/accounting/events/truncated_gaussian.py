"""Gaussian noise on truncated Poisson batches.

Let M be the number of other records in a Poisson batch of rate q, and B the largest batch size. If M < B nothing is
truncated, with or without the record, and the pair is that of Poisson batches. If M >= B the batch holds B of the
others or, with probability q B / (M + 1), the record in place of one of them, which changes the sum by at most two clip
norms. M has the same distribution for both neighbours, so the pair is that of Poisson batches or that of a shift by 2,
with the probabilities of M < B and M >= B. No delta is added, unlike in the coupling with Poisson batches of Chua et
al. 2024 ("Scalable DP-SGD: shuffling vs. Poisson subsampling", proposition 3.2), which adds
steps (1 + e^epsilon) P(M >= B).
"""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.gaussian_pairs import OneOfPairs
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian, Pair, Sampled
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import SampledGaussian, TruncatedGaussian

#: Generous bound on the relative error of a binomial tail.
_ROUNDING = 1e-9
#: Replaces probabilities that underflow.
_LEAST = 1e-300


def _full_batch(event: TruncatedGaussian) -> tuple[float, float]:
    """The probability that other records fill the batch, and that of the record being in it given that they do."""
    from scipy.special import bdtrc

    size, others, rate = event.largest_batch, event.examples - 1, event.sample_rate
    if size > others:
        return 0.0, 0.0
    full = float(bdtrc(size - 1, others, rate)) if rate < 1 else 1.0
    if full == 0:
        return 0.0, 0.0
    more = float(bdtrc(size, event.examples, rate)) if rate < 1 else 1.0
    # E[q B / (M + 1) | M >= B], since C(n - 1, m) / (m + 1) = C(n, m + 1) / n.
    chance = max(size * more / full / event.examples * (1 + _ROUNDING), _LEAST)
    return min(1.0, full * (1 + _ROUNDING)), min(rate, chance)


def _pair(event: TruncatedGaussian, lower: bool) -> RepeatedPair:
    full, chance = _full_batch(event)
    mu = 1 / event.noise_multiplier
    pairs: list[Pair] = [Sampled(Gaussian(mu), event.sample_rate), Sampled(Gaussian(2 * mu), chance)]
    if full == 0:
        return RepeatedPair(pairs[0], event.steps)
    if full == 1:
        return RepeatedPair(pairs[1], event.steps)
    return RepeatedPair(OneOfPairs(tuple(pairs), (1 - full, full)), event.steps)


def _divergences(event: TruncatedGaussian, alphas: Floats) -> Floats:
    """Those of one of two sampled Gaussians, which both diverge more with the record against without it."""
    full, chance = _full_batch(event)
    parts = (
        (1 - full, SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate)),
        (full, SampledGaussian(noise_multiplier=event.noise_multiplier / 2, sample_rate=chance)),
    )
    logs = [
        (alphas - 1) * sampled_gaussian.ROW.divergences(part, alphas) + math.log(weight)
        for weight, part in parts
        if weight > 0
    ]
    return np.asarray(np.maximum(np.logaddexp.reduce(logs), 0.0) / (alphas - 1))


def _shift(event: TruncatedGaussian) -> float | None:
    """The shift if the record takes part in every step and no batch is ever truncated, else None."""
    if event.sample_rate < 1 or event.largest_batch < event.examples:
        return None
    return math.sqrt(event.steps) / event.noise_multiplier


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="noise_multiplier"),
    shift=_shift,
    full_shift=lambda event: 2 * math.sqrt(event.steps) / event.noise_multiplier,
    extreme=lambda event: event.noise_multiplier < 1e-6,
)
