"""Laplace noise on one number."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.mixtures import gauss_legendre, log_moment
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Laplace
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.events import LaplaceNoise

#: Losses farther than this from both ends of the pair's range have negligible weight.
_REACH = 90.0
#: Larger orders are treated as infinite, which raises divergences slightly.
_ENDLESS = 1e6


def _pair(event: LaplaceNoise, lower: bool) -> RepeatedPair:
    return on_batches(Laplace(event.scale), event)


def _divergences(event: LaplaceNoise, alphas: Floats) -> Floats:
    return np.array([_sampled_laplace(1 / event.scale, event.sample_rate, float(alpha)) for alpha in alphas])


def _sampled_laplace(epsilon: float, q: float, alpha: float) -> float:
    """One step of the Laplace mechanism with this ``epsilon``, Poisson-sampled at rate ``q``.

    Without the record, the loss t of the unsampled pair is epsilon with probability exp(-epsilon) / 2, -epsilon with
    1/2, and has density exp(-(t + epsilon) / 2) / 4 in between; sampling turns it into log(1 - q + q exp(t)).
    """
    if q == 0:
        return 0.0
    if math.isinf(epsilon):
        return math.inf
    if alpha > _ENDLESS:
        return float(_amplified_losses(np.array([epsilon]), q)[0])
    t, dt = gauss_legendre(*_laplace_panels(epsilon, q, alpha))
    with np.errstate(divide="ignore", under="ignore"):
        log_mass = np.concatenate([np.log(dt / 4) - (t + epsilon) / 2, -math.log(2) - np.array([0.0, epsilon])])
        losses = _amplified_losses(np.concatenate([t, [-epsilon, epsilon]]), q)
        return log_moment(log_mass, losses, alpha) / (alpha - 1)


def _laplace_panels(epsilon: float, q: float, alpha: float) -> tuple[Floats, Floats]:
    """Lower and upper ends of panels over the losses that matter.

    The integrand's logarithm is convex in t, so it is largest at the ends. Its slope, alpha times the share of the
    sampled part minus 1/2, determines the panels' length: 1 while it is below 8, and 16 / alpha from there on.
    """
    share = min(8 / alpha, 1.0)
    steep = math.log(share) - math.log1p(-share) + math.log1p(-q) - math.log(q) if share < 1 and q < 1 else math.inf
    steep = min(epsilon, max(-epsilon, -math.inf if q == 1 and share < 1 else steep))
    pieces = [
        _pieces(-epsilon, min(steep, _REACH - epsilon), 1.0),
        _pieces(max(-epsilon, min(_REACH - epsilon, steep), steep - _REACH), steep, 1.0),
        _pieces(max(steep, epsilon - 8), epsilon, 16 / alpha),
    ]
    return np.concatenate([p[:-1] for p in pieces]), np.concatenate([p[1:] for p in pieces])


def _pieces(low: float, high: float, length: float) -> Floats:
    """Ends of equal pieces of at most ``length``; a single end, so no piece, unless ``high`` is above ``low``."""
    return np.linspace(low, high, math.ceil((high - low) / length) + 1) if high > low else np.array([low])


def _amplified_losses(t: Floats, q: float) -> Floats:
    """log(1 - q + q exp(t)), with a small relative error near t = 0."""
    near = np.log1p(q * np.expm1(np.minimum(t, 1))) if q < 1 else t
    return np.where(t < 1, near, t + np.log(q + (1 - q) * np.exp(-np.maximum(t, 1))))


ROW = EventAccounting(pair=_pair, divergences=_divergences, setting=NoiseSetting(field="scale"))
