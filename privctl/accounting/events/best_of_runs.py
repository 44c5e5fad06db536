"""The best of a random number of runs, each of Gaussians on Poisson batches (Papernot and Steinke 2022)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from privctl.accounting.events import sampled_gaussian
from privctl.accounting.events.row import EventAccounting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms, Gaussian, Sampled
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.renyi_profile import pair_of_curve
from privctl.accounting.runs_law import gamma_of
from privctl.domain.events import BestOfRuns, SampledGaussian

#: Orders at which a run's divergences are computed: integers for batches, where they have a closed form.
_WHOLE = np.unique(np.concatenate([np.arange(2.0, 65.0), np.geomspace(65, 2048, 300).round()]))
_ANY = 1 + np.geomspace(1e-3, 1e6, 2000)


def _pair(event: BestOfRuns, lower: bool) -> RepeatedPair:
    """The pair that follows from the divergences; for a lower bound a single run, which is exact if all runs tie."""
    if lower:
        return RepeatedPair(Sampled(Gaussian(1 / event.noise_multiplier), event.sample_rate), event.run_steps)
    return RepeatedPair(_pair_of_all(event), 1)


def _for_floor(event: BestOfRuns) -> BestOfRuns:
    """A Poisson number of runs may be none, which tells nothing."""
    return replace(event, sample_rate=0.0) if event.shape is None else event


@lru_cache(maxsize=8)
def _pair_of_all(event: BestOfRuns) -> Atoms:
    corners = _WHOLE if event.sample_rate < 1 else ()
    return pair_of_curve(lambda alphas: event.steps * _divergences(event, alphas), corners)


def _divergences(event: BestOfRuns, alphas: Floats) -> Floats:
    """Linear interpolation of (alpha - 1) D_alpha, which is convex and 0 at 1, between the orders where it is known.

    Infinite beyond the largest such order. On the whole data, where D_b of a run is rho b, the bound for a truncated
    negative binomial is evaluated at the order itself or, if that bound's minimum is at a higher order, there, because
    divergences increase with the order.
    """
    if event.sample_rate == 0:
        return np.zeros(len(alphas))
    orders, divergences = _at_orders(event)
    with np.errstate(invalid="ignore"):
        moments = np.interp(alphas, np.append(1.0, orders), np.append(0.0, (orders - 1) * divergences), right=np.inf)
    interpolated = np.asarray(moments / (alphas - 1))
    if event.sample_rate < 1 or event.shape is None:
        return interpolated
    least_at = 1 + math.sqrt(math.log(event.mean_runs) / event.run_steps * 2) * event.noise_multiplier
    at = np.maximum(alphas, least_at)
    return np.asarray(np.minimum(interpolated, _truncated_law_divergences(event, at, _run_divergences(event, at))))


@lru_cache(maxsize=8)
def _at_orders(event: BestOfRuns) -> tuple[Floats, Floats]:
    """Orders (n,), and upper bounds in nats on the divergences of one selection at these orders."""
    orders = _WHOLE if event.sample_rate < 1 else _ANY
    once = _run_divergences(event, orders)
    if event.shape is None:
        divergences = of_poisson_law(orders, once, event.mean_runs)
    else:
        divergences = _truncated_law_divergences(event, orders, once)
    return orders, np.minimum.accumulate(divergences[::-1])[::-1]


def _run_divergences(event: BestOfRuns, orders: Floats) -> Floats:
    """Divergences of one run at ``orders``."""
    run = SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate)
    return np.asarray(event.run_steps * sampled_gaussian.ROW.divergences(run, orders))


def _truncated_law_divergences(event: BestOfRuns, orders: Floats, run: Floats) -> Floats:
    """Theorem 2: D_alpha of a run + log(mean) / (alpha - 1) + (1 + shape) c; only that of a run if the mean is 1.

    c is the minimum of (1 - 1 / b) D_b + log(1 / gamma) / b over orders b; if D_b = rho b, it is attained at
    b = sqrt(log(1 / gamma) / rho), or at 1 if that is smaller.
    """
    if event.shape is None or event.mean_runs == 1:
        return run
    stop = -math.log(gamma_of(event.mean_runs, event.shape))
    if event.sample_rate == 1:
        root = math.sqrt(event.run_steps / 2) / event.noise_multiplier  # the root of rho, which may underflow
        least = 2 * math.sqrt(stop) * root - root * root if math.sqrt(stop) > root else stop
    else:
        least = least_of_stop(orders, run, stop)
    return np.asarray(run + math.log(event.mean_runs) / (orders - 1) + (1 + event.shape) * least)


def least_of_stop(orders: Floats, run: Floats, stop: float) -> float:
    """The least (1 - 1 / b) D_b + ``stop`` / b of theorem 2 over ``orders`` b and 1; a ``run`` has divergences D_b."""
    return min(stop, float(np.min((1 - 1 / orders) * run + stop / orders)))


def of_poisson_law(orders: Floats, run: Floats, mean: float) -> Floats:
    """Theorem 6: D_alpha of a run + log(mean) / (alpha - 1) + mean * delta.

    delta is a run's at epsilon = log(1 + 1 / (alpha - 1)), bounded by its divergences.
    """
    above = orders - 1
    return np.asarray(run + math.log(mean) / above + mean * deltas_of(orders, run, np.log1p(1 / above)))


def deltas_of(orders: Floats, run: Floats, epsilons: Floats) -> Floats:
    """Deltas at ``epsilons`` by divergences at ``orders`` (Canonne, Kamath and Steinke 2020, proposition 12)."""
    with np.errstate(over="ignore"):
        logs = (orders - 1) * (run - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(orders)
        return np.asarray(np.exp(np.minimum(np.min(logs, axis=1), 0.0)))


ROW = EventAccounting(pair=_pair, divergences=_divergences, for_floor=_for_floor)
