"""The best of a random number of runs, each of Gaussians on Poisson batches (Papernot and Steinke 2022)."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian, Sampled
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.renyi_profile import pair_of_curve
from privctl.domain.events import BestOfRuns, SampledGaussian

#: Orders at which a run's divergences are computed: whole ones on batches, where they have a closed form.
_WHOLE = np.concatenate([np.arange(2.0, 65.0), np.geomspace(70, 2048, 40).round()])
_ANY = 1 + np.geomspace(1e-3, 1e6, 2000)


def _pair(event: BestOfRuns, lower: bool) -> RepeatedPair:
    """What follows from the divergences; from below one run, which is all of it where all runs are equally good."""
    if lower:
        return RepeatedPair(Sampled(Gaussian(1 / event.noise_multiplier), event.sample_rate), event.run_steps)
    return RepeatedPair(pair_of_curve(lambda alphas: event.steps * _divergences(event, alphas)), 1)


def _divergences(event: BestOfRuns, alphas: Floats) -> Floats:
    """Theorem 2: D_alpha of a run + log(mean) / (alpha - 1) + (1 + shape) c.

    c is the least of (1 - 1 / b) D_b + log(1 / gamma) / b over orders b. Between orders (alpha - 1) D_alpha, which is
    convex and 0 at 1, is taken to be straight; beyond the largest nothing is known.
    """
    if event.sample_rate == 0:
        return np.zeros(len(alphas))
    orders = _WHOLE if event.sample_rate < 1 else _ANY
    run = SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate)
    found = event.run_steps * sampled_gaussian.ROW.divergences(run, orders)
    if event.mean_runs > 1:
        chosen = np.min((1 - 1 / orders) * found - math.log(gamma_of(event.mean_runs, event.shape)) / orders)
        found = found + math.log(event.mean_runs) / (orders - 1) + (1 + event.shape) * chosen
        found = np.minimum.accumulate(found[::-1])[::-1]
    with np.errstate(invalid="ignore"):
        moments = np.interp(alphas, np.append(1.0, orders), np.append(0.0, (orders - 1) * found), right=np.inf)
    return np.asarray(moments / (alphas - 1))


def gamma_of(mean: float, shape: float) -> float:
    """The parameter gamma in (0, 1) of the truncated negative binomial law with this ``mean`` above 1."""

    def excess(log_gamma: float) -> float:
        rest = -math.expm1(log_gamma)
        if shape == 0:
            return math.log(rest) - log_gamma - math.log(-log_gamma) - math.log(mean)
        return math.log(shape * rest) - log_gamma - math.log(-math.expm1(shape * log_gamma)) - math.log(mean)

    from scipy.optimize import brentq  # here, as importing it takes longer than most commands' accounting

    # Rounded down, which only adds to the divergence.
    return math.exp(brentq(excess, -700.0, -1e-12, xtol=1e-14)) * (1 - 1e-12)


ROW = EventAccounting(pair=_pair, divergences=_divergences)
