"""The exponential mechanism, of which the range of its losses is known."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.bounded_range import BoundedRange
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import ExponentialChoice


def _pair(event: ExponentialChoice, lower: bool) -> RepeatedPair:
    return RepeatedPair(BoundedRange(event.epsilon), event.steps)


def _divergences(event: ExponentialChoice, alphas: Floats) -> Floats:
    """The largest of two outcomes with losses t and t - epsilon, over t.

    The moment is (u^k (a - b u)) / (1 - e^-epsilon) with k = alpha - 1, u = e^t, a = 1 - e^(-alpha epsilon) and b =
    e^-epsilon - e^(-alpha epsilon), largest at u = k a / (alpha b).
    """
    epsilon, k = event.epsilon, alphas - 1
    a, b = -np.expm1(-alphas * epsilon), -np.expm1(-k * epsilon) * math.exp(-epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.clip(np.log(k) + np.log(a) - np.log(alphas) - np.log(b), 0.0, epsilon)
        rest = (a - b * np.exp(t)) / -math.expm1(-epsilon)
        found = t + np.log(rest) / k
    return np.asarray(np.clip(np.where(np.isnan(found), epsilon, found), 0.0, epsilon))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="epsilon", of_noise=lambda noise: 1 / noise),
)
