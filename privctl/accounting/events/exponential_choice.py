"""The exponential mechanism, whose privacy losses have a known range."""

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
    """Those of the dominating pair, with moments e^(-e / 2) sinh((alpha - 1/2) e) / ((alpha - 1/2) (1 - e^-e))."""
    epsilon, order = event.epsilon, alphas - 0.5
    log_sinh = order * epsilon + np.log(-np.expm1(-2 * order * epsilon)) - math.log(2)
    log_moment = log_sinh - epsilon / 2 - np.log(order) - math.log(-math.expm1(-epsilon))
    return np.asarray(np.clip(log_moment / (alphas - 1), 0.0, epsilon))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="epsilon", of_noise=lambda noise: 1 / noise),
)
