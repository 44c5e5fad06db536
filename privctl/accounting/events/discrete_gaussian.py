"""Discrete Gaussian noise on one integer."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import DiscreteGaussianNoise, SampledGaussian

#: Standard deviations beyond which probabilities are below exp(-800), and so underflow.
_REACH = 40


def _pair(event: DiscreteGaussianNoise, lower: bool) -> RepeatedPair:
    return on_batches(_shifted_pair(event.stddev, event.sensitivity), event)


def _shifted_pair(stddev: float, sensitivity: int) -> Atoms:
    """The noise shifted by ``sensitivity`` against the noise, with exact probabilities by outcome x.

    The mass beyond ``_REACH`` standard deviations is at most that of the normal distribution (Canonne, Kamath and
    Steinke 2020, proposition 25), which underflows.
    """
    reach = math.ceil(_REACH * stddev) + 1
    x = np.arange(-reach, sensitivity + reach + 1, dtype=np.float64)
    exponents = -(((x - sensitivity) / stddev) ** 2) / 2
    log_p = exponents - np.log(np.sort(np.exp(exponents)).sum())
    losses = sensitivity * (2 * x - sensitivity) / (2 * stddev * stddev)
    return Atoms(tuple(losses.tolist()), tuple(log_p.tolist()))


def _divergences(event: DiscreteGaussianNoise, alphas: Floats) -> Floats:
    """Those of continuous noise at integer orders, where E exp(k loss) under the noise is the same for every integer k.

    At other orders, linear interpolation is an upper bound, since (alpha - 1) D_alpha is convex and 0 at alpha = 1;
    without sampling, alpha s^2 / (2 sigma^2) holds for all orders (Canonne, Kamath and Steinke 2020, theorem 4).
    """
    continuous = SampledGaussian(noise_multiplier=event.stddev / event.sensitivity, sample_rate=event.sample_rate)
    if event.sample_rate in (0, 1):
        return sampled_gaussian.ROW.divergences(continuous, alphas)
    low, high = np.floor(alphas), np.ceil(alphas)
    needed = np.unique(np.concatenate([low, high]))
    needed = needed[needed > 1]
    logs = np.append(0.0, (needed - 1) * sampled_gaussian.ROW.divergences(continuous, needed))
    with np.errstate(invalid="ignore"):
        at_alpha = np.interp(alphas, np.append(1.0, needed), logs)
    return np.asarray(at_alpha / (alphas - 1))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="stddev"),
)
