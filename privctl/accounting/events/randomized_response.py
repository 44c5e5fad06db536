"""Randomized response on bits of a batch."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import randomized_response
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.randomized_response import require_few_enough, three_point
from privctl.domain.events import RandomizedResponse


def _pair(event: RandomizedResponse, lower: bool) -> RepeatedPair:
    require_few_enough(event.bits)
    return on_batches(randomized_response(event.epsilon, event.bits), event)


def _divergences(event: RandomizedResponse, alphas: Floats) -> Floats:
    return three_points(*three_point(event.epsilon, event.bits, event.sample_rate), alphas)


def three_points(loss: float, weight: float, alphas: Floats) -> Floats:
    """Renyi divergences of the pair whose loss is ``loss``, 0 or -``loss`` with probabilities w A, 1 - w, w (1 - A).

    A = 1 / (1 + exp(-loss)), w = ``weight``. The moment minus 1 is w (cosh c - 1 + tanh(loss / 2) sinh c) for
    c = (alpha - 1) loss, without negative terms.
    """
    if weight * loss == 0:
        return np.zeros(len(alphas))
    c, half = (alphas - 1) * loss, math.tanh(loss / 2)
    near = np.minimum(c, 1.0)
    small = np.log1p(weight * (2 * np.sinh(near / 2) ** 2 + half * np.sinh(near)))
    # For large c, where e^c may overflow, all terms are divided by it.
    decay = np.exp(-np.maximum(c, 1.0))
    with np.errstate(divide="ignore"):
        rest = (1 - weight) * decay + weight * ((1 + half) / 2 + (1 - half) / 2 * decay * decay)
        large = np.maximum(c + np.log(rest), 0.0)
    return np.asarray(np.where(c < 1, small, large) / (alphas - 1))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="epsilon", of_noise=lambda noise: 1 / noise),
)
