"""Discrete Gaussian noise on one whole number."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import DiscreteGaussianNoise, SampledGaussian

#: Standard deviations beyond which a probability is below exp(-800), less than any float.
_REACH = 40


def _pair(event: DiscreteGaussianNoise, lower: bool) -> RepeatedPair:
    return on_batches(_moved(event.stddev, event.sensitivity), event)


def _moved(stddev: float, sensitivity: int) -> Atoms:
    """The noise moved up by ``sensitivity`` against the noise: exact probabilities, by the place x of the outcome.

    The mass beyond ``_REACH`` standard deviations is that of the normal law at most (Canonne, Kamath and Steinke 2020,
    proposition 25), which no float holds.
    """
    reach = math.ceil(_REACH * stddev) + 1
    x = np.arange(-reach, sensitivity + reach + 1, dtype=np.float64)
    exponents = -(((x - sensitivity) / stddev) ** 2) / 2
    log_p = exponents - np.log(np.sort(np.exp(exponents)).sum())
    losses = sensitivity * (2 * x - sensitivity) / (2 * stddev * stddev)
    return Atoms(tuple(losses.tolist()), tuple(log_p.tolist()))


def _divergences(event: DiscreteGaussianNoise, alphas: Floats) -> Floats:
    """Those of continuous noise where alpha is whole: E exp(k loss) under the noise is the same for every whole k.

    Elsewhere never above what is straight between the whole orders around, since (alpha - 1) D_alpha is convex and 0 at
    alpha = 1; without sampling alpha s^2 / (2 sigma^2) holds for all (Canonne, Kamath and Steinke 2020, theorem 4).
    """
    like = SampledGaussian(noise_multiplier=event.stddev / event.sensitivity, sample_rate=event.sample_rate)
    if event.sample_rate in (0, 1):
        return sampled_gaussian.ROW.divergences(like, alphas)
    low, high = np.floor(alphas), np.ceil(alphas)
    needed = np.unique(np.concatenate([low, high]))
    needed = needed[needed > 1]
    logs = np.append(0.0, (needed - 1) * sampled_gaussian.ROW.divergences(like, needed))
    with np.errstate(invalid="ignore"):
        at_alpha = np.interp(alphas, np.append(1.0, needed), logs)
    return np.asarray(at_alpha / (alphas - 1))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="stddev"),
)
