"""Gaussian noise on a clipped sum that holds each record of a secret with that record's own probability."""

from __future__ import annotations

import numpy as np

from privctl.accounting.events.row import EventAccounting
from privctl.accounting.mixtures import log_moments
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import GaussianMixture
from privctl.accounting.poisson_binomial import TAIL_OF_LOSSES, Floats, poisson_binomial
from privctl.domain.events import SecretMixture


def _pair(event: SecretMixture, lower: bool) -> RepeatedPair:
    law = poisson_binomial(event.probabilities, TAIL_OF_LOSSES)
    mixture = GaussianMixture(
        shifts=tuple(float(k) for k in law.shifts),
        weights=tuple(float(w) for w in law.weights),
        stddev=event.noise_multiplier,
        # For an upper bound the truncated mass is an infinite loss; for a lower bound it is ignored.
        lost=0.0 if lower else law.tail_mass,
    )
    return RepeatedPair(mixture, event.steps)


def _divergences(event: SecretMixture, alphas: Floats) -> Floats:
    """One step of a secret's mixture against no secret; the truncated mass of K is added by Minkowski's inequality.

    ||r||_alpha <= ||kept||_alpha + sum_cut w_k ||r_k||_alpha, with ||r_k||_alpha = exp((alpha - 1) k^2 / (2 sigma^2)).
    """
    law, sigma = poisson_binomial(event.probabilities), event.noise_multiplier
    kept = log_moments(law.weights, law.shifts, sigma, alphas.tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.array([law.log_tail_norm(growth) for growth in (alphas - 1) / 2 / sigma / sigma])
        ratio = np.where(np.isfinite(kept), lost - kept / alphas, -np.inf)
    return np.asarray((kept + alphas * np.logaddexp(0.0, ratio)) / (alphas - 1))


ROW = EventAccounting(pair=_pair, divergences=_divergences)
