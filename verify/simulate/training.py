"""A toy training end to end: DP-SGD in a few lines, run many times with and without one record.

Logistic regression on public points in one coordinate; the record's loss is linear in another, so that its clipped
gradient is always the clip norm along it. Whoever sees all weights can compute the privacy loss of what was released.
"""

from __future__ import annotations

import math

import numpy as np

from privctl.domain.events import SampledGaussian
from verify.events.row import Draw, Floats

_RECORDS = 12
_LEARNING_RATE = 0.5


def toy_training(event: SampledGaussian, steps: int, *, noise: float = 1.0) -> Draw:
    """Losses of runs of ``steps`` steps at the event's rate and noise.

    ``noise`` scales what is really added: 1 is right, 0.5 a fault that a test must see.
    """
    sigma, rate = event.noise_multiplier, event.sample_rate

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        points = np.linspace(-2, 2, _RECORDS)
        labels = np.where(points > 0.3, 1.0, -1.0)
        weights = np.zeros((count, 2))
        losses = np.zeros(count)
        expected = rate * (_RECORDS + 1)
        for _ in range(steps):
            drawn = rng.random((count, _RECORDS)) < rate
            margins = labels * points * weights[:, :1]
            slopes = np.clip(-labels * points / (1 + np.exp(margins)), -1, 1)
            total = np.zeros((count, 2))
            total[:, 0] = (drawn * slopes).sum(1)
            if present:
                total[:, 1] -= rng.random(count) < rate
            total += noise * sigma * rng.standard_normal((count, 2))
            before = weights.copy()
            weights -= _LEARNING_RATE * total / expected
            # What an observer of the weights gets back.
            seen = (weights[:, 1] - before[:, 1]) * expected / _LEARNING_RATE
            losses += gaussian_loss(seen, sigma, rate)
        return losses

    return draw


def gaussian_loss(x: Floats, sigma: float, rate: float) -> Floats:
    """log((1 - q) + q e^((2x - 1) / (2 sigma^2))) of noisy sums ``x`` in clip norms."""
    grown = (2 * x - 1) / (2 * sigma * sigma)
    if rate == 1:
        return np.asarray(grown)
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + grown)) if rate else np.zeros_like(x)
