"""K-ary randomized response: each record gives one of several answers."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.randomized_response import three_points
from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import ManyWayResponse
from privctl.domain.guarantee import Adjacency


def _log_probabilities(event: ManyWayResponse) -> tuple[float, float, float]:
    """Log probabilities of the true answer, of one other, and of all but the two true answers of the neighbours."""
    log_others = math.log(event.answers - 1)
    log_true = -float(np.logaddexp(0.0, log_others - event.epsilon))
    rest = math.log(event.answers - 2) if event.answers > 2 else -math.inf
    return log_true, log_true - event.epsilon, log_true - event.epsilon + rest


def _pair(event: ManyWayResponse, lower: bool) -> RepeatedPair:
    if event.neighbours is Adjacency.ZERO_OUT:
        losses, log_p = _against_any(event)
        return RepeatedPair(Atoms(losses, log_p, mirrored=False), event.steps)
    return _against_another(event)


def _against_any(event: ManyWayResponse) -> tuple[tuple[float, float], tuple[float, float]]:
    """Losses against a random answer, of the other answers and of the true one, and their log probabilities."""
    log_true, log_other, _ = _log_probabilities(event)
    log_all = math.log(event.answers)
    return (log_other + log_all, log_true + log_all), (log_other + math.log(event.answers - 1), log_true)


def _against_another(event: ManyWayResponse) -> RepeatedPair:
    """One true answer against another; every third answer is equally likely under both."""
    log_true, log_other, log_rest = _log_probabilities(event)
    log_masses = {-event.epsilon: log_other, 0.0: log_rest, event.epsilon: log_true}
    kept = {loss: log_p for loss, log_p in log_masses.items() if log_p > -math.inf}
    return RepeatedPair(Atoms(tuple(kept), tuple(kept.values())), event.steps)


def _divergences(event: ManyWayResponse, alphas: Floats) -> Floats:
    if event.neighbours is Adjacency.ZERO_OUT:
        losses, log_p = (np.array(array)[:, None] for array in _against_any(event))
        to, back = (
            np.logaddexp.reduce(log_p + exponents, axis=0) for exponents in ((alphas - 1) * losses, -alphas * losses)
        )
        return np.asarray(np.maximum(np.maximum(to, back), 0.0) / (alphas - 1))
    log_true, log_other, _ = _log_probabilities(event)
    return three_points(event.epsilon, min(1.0, math.exp(log_true) + math.exp(log_other)), alphas)


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="epsilon", of_noise=lambda noise: 1 / noise),
)
