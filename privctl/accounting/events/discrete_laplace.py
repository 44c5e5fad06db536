"""Discrete Laplace noise on one integer."""

from __future__ import annotations

import numpy as np

from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.mixtures import log_moment
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import DiscreteLaplaceNoise


def _pair(event: DiscreteLaplaceNoise, lower: bool) -> RepeatedPair:
    return on_batches(_shifted_pair(event.decay, event.sensitivity), event)


def _shifted_pair(decay: float, sensitivity: int) -> Atoms:
    """The noise shifted by ``sensitivity`` against the noise, by outcome x.

    The loss is decay (2 x - sensitivity) for x from 0 to the sensitivity, and constant beyond either end.
    """
    x = np.arange(sensitivity + 1)
    log_p = np.log(np.tanh(decay / 2)) - decay * (sensitivity - x)
    log_p[[0, -1]] = -np.logaddexp(0.0, -decay) - decay * np.array([sensitivity, 0])
    return Atoms(tuple((decay * (2 * x - sensitivity)).tolist()), tuple((log_p - np.logaddexp.reduce(log_p)).tolist()))


def _divergences(event: DiscreteLaplaceNoise, alphas: Floats) -> Floats:
    """One step of the Poisson-sampled mechanism: the moments of its finitely many ratios without the record."""
    if event.sample_rate == 0:
        return np.zeros(len(alphas))
    atoms = _shifted_pair(event.decay, event.sensitivity)
    losses, rate = np.array(atoms.losses), event.sample_rate
    log_q = np.array(atoms.log_p) - losses
    with np.errstate(divide="ignore"):
        sampled = np.logaddexp(np.log1p(-rate), np.log(rate) + losses) if rate < 1 else losses
    near = np.abs(losses) < 1
    sampled = np.where(near, np.log1p(rate * np.expm1(np.where(near, losses, 0.0))), sampled)
    return np.array([log_moment(log_q, sampled, float(alpha)) / (alpha - 1) for alpha in alphas])


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="decay", of_noise=lambda noise: 1 / noise),
)
