"""A mechanism of which only an epsilon and a delta are known."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.randomized_response import three_points
from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.mixtures import log_moment
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import EpsilonDeltaDp

#: Lower bounds need finite losses: a loss this much above epsilon replaces an infinite one.
_NEARLY_INFINITE = 20.0


def _pair(event: EpsilonDeltaDp, lower: bool) -> RepeatedPair:
    return on_batches(_lowered(event) if lower and event.delta > 0 else _worst(event), event)


def _worst(event: EpsilonDeltaDp) -> Atoms:
    """The pair that dominates every such mechanism (Kairouz, Oh and Viswanath 2015, theorem 3.3).

    With probability delta the outcome reveals everything; else it is a bit that is true with log-odds epsilon.
    """
    rest, epsilon = math.log1p(-event.delta), event.epsilon
    log_p = (rest - epsilon - math.log1p(math.exp(-epsilon)), rest - math.log1p(math.exp(-epsilon)))
    return Atoms((-epsilon, epsilon), log_p, infinite=event.delta)


def _lowered(event: EpsilonDeltaDp) -> Atoms:
    """The same, but the revealing outcome is itself a bit that is true with log-odds far above epsilon."""
    worst, most = _worst(event), event.epsilon + _NEARLY_INFINITE
    turned = -most - math.log1p(math.exp(-most))
    log_p = (math.log(event.delta) + turned, *worst.log_p, math.log(event.delta) + math.log1p(-math.exp(turned)))
    return Atoms((-most, *worst.losses, most), log_p)


def _divergences(event: EpsilonDeltaDp, alphas: Floats) -> Floats:
    """Those of a bit with log-odds epsilon, on a Poisson batch; raises ValueError if delta is above 0."""
    if event.sample_rate == 0:
        return np.zeros(len(alphas))
    if event.delta > 0:
        raise ValueError(f"delta is {event.delta:g}; a step with a delta above 0 has no finite Renyi divergence")
    return sampled_bit(event.epsilon, event.sample_rate, alphas)


def sampled_bit(epsilon: float, rate: float, alphas: Floats) -> Floats:
    """Renyi divergences at ``alphas`` of a bit that is true with log-odds ``epsilon``, on a batch of rate ``rate``."""
    if rate == 1:
        return three_points(epsilon, 1.0, alphas)
    ends = np.array([-epsilon, epsilon])
    log_q = -np.logaddexp(0.0, ends)
    small = np.log1p(rate * np.expm1(np.minimum(ends, 1.0)))
    losses = np.where(ends < 1, small, np.logaddexp(math.log1p(-rate), math.log(rate) + ends))
    return np.array([log_moment(log_q, losses, float(alpha)) / (alpha - 1) for alpha in alphas])


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="epsilon", of_noise=lambda noise: 1 / noise),
)
