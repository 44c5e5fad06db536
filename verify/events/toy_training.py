"""A toy training: DP-SGD in a few lines, run many times with and without one record.

Logistic regression on public points in one coordinate. The record's loss is linear in another coordinate, so that its
clipped gradient always has the clip norm along it. An observer of all weights can compute the privacy loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privctl.domain.events import Batches, SampledGaussian, TruncatedGaussian
from verify.events.row import Draw, Floats

_RECORDS = 12
_LEARNING_RATE = 0.5


def toy_training(
    event: SampledGaussian | TruncatedGaussian, steps: int, *, noise: float = 1.0, taken: float | None = None
) -> Draw:
    """Draws losses of runs of ``steps`` steps at the event's rate and noise, for three ways of drawing batches.

    Batches are Poisson, balls-and-bins or truncated. For truncated batches, ``taken`` is the probability that the
    record is in one; the other records have no effect along its coordinate. ``noise`` scales the noise that is added: 1
    is correct, and 0.5 is a fault that a test must detect.
    """
    sigma, rate = event.noise_multiplier, event.sample_rate
    cut = event if isinstance(event, TruncatedGaussian) else None
    in_bins = isinstance(event, SampledGaussian) and event.batches is Batches.BALLS_AND_BINS
    records = _RECORDS if cut is None else min(_RECORDS, cut.examples - 1)

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        points = np.linspace(-2, 2, records)
        labels = np.where(points > 0.3, 1.0, -1.0)
        weights = np.zeros((count, 2))
        losses = np.zeros(count)
        expected = rate * (records + 1)
        takes_part = _by_bins(rng, count, rate) if in_bins else _by_coins(rng, count, rate, records, present)
        ratios = _PassRatios(count, sigma, rate)
        for step in range(steps):
            chosen = takes_part(step)
            if cut is not None:
                _truncate_batches(rng, chosen, cut)
            drawn = chosen[:, :records]
            margins = labels * points * weights[:, :1]
            slopes = np.clip(-labels * points / (1 + np.exp(margins)), -1, 1)
            total = np.zeros((count, 2))
            total[:, 0] = (drawn * slopes).sum(1)
            if present:
                total[:, 1] -= chosen[:, records]
            total += noise * sigma * rng.standard_normal((count, 2))
            before = weights.copy()
            weights -= _LEARNING_RATE * total / expected
            # The noisy sum, as an observer recovers it from the weights.
            seen = (weights[:, 1] - before[:, 1]) * expected / _LEARNING_RATE
            if in_bins:
                losses += ratios.after(step, seen, last=step == steps - 1)
            else:
                losses += gaussian_loss(seen, sigma, rate if taken is None else taken)
        return losses

    return draw


def pass_losses(event: SampledGaussian) -> Draw:
    """Draws losses of a balls-and-bins pass, or of its first ``event.steps`` steps, as a whole."""
    sigma, rate = event.noise_multiplier, event.sample_rate

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        ratios, losses = _PassRatios(count, sigma, rate), np.zeros(count)
        turns = rng.integers(round(1 / rate), size=count)
        for step in range(event.steps):
            seen = sigma * rng.standard_normal(count) + (present * (turns == step))
            losses += ratios.after(step, seen, last=step == event.steps - 1)
        return losses

    return draw


class _PassRatios:
    """Accumulates the losses of balls-and-bins passes, in which each step is equally likely to be the record's."""

    def __init__(self, count: int, sigma: float, rate: float) -> None:
        self._sigma, self._bins = sigma, round(1 / rate)
        self._log_sum = np.full(count, -math.inf)

    def after(self, step: int, seen: Floats, *, last: bool) -> Floats:
        """The loss of a pass if ``step`` ends it, otherwise 0; ``last`` ends it early."""
        self._log_sum = np.logaddexp(self._log_sum, gaussian_loss(seen, self._sigma, 1.0))
        begun = step % self._bins + 1
        if begun < self._bins and not last:
            return np.zeros_like(seen)
        # If the record's step is one of the missing ones, nothing was observed of it: a likelihood ratio of 1.
        missing = math.log(self._bins - begun) if begun < self._bins else -math.inf
        whole = np.logaddexp(self._log_sum, missing) - math.log(self._bins)
        self._log_sum = np.full(len(seen), -math.inf)
        return np.asarray(whole)


#: Which records take part in a step, one column per record; the last column is the record in question.
_TakesPart = Callable[[int], NDArray[Any]]


def _by_coins(rng: np.random.Generator, count: int, rate: float, records: int, present: bool) -> _TakesPart:
    def takes_part(step: int) -> NDArray[Any]:
        others = rng.random((count, records)) < rate
        own = rng.random(count) < rate if present else np.zeros(count, bool)
        return np.column_stack((others, own))

    return takes_part


def _truncate_batches(rng: np.random.Generator, chosen: NDArray[Any], event: TruncatedGaussian) -> None:
    """Truncates the batches in ``chosen``, one row per run, given the records beyond its columns that are drawn too."""
    unseen = rng.binomial(event.examples - chosen.shape[1], event.sample_rate, len(chosen))
    seen = chosen.sum(1)
    full = np.flatnonzero(seen + unseen > event.largest_batch)
    if not len(full):
        return
    kept = rng.hypergeometric(seen[full], unseen[full], event.largest_batch)
    keys = np.where(chosen[full], rng.random((len(full), chosen.shape[1])), 2.0)
    chosen[full] &= keys.argsort(1).argsort(1) < kept[:, None]


def _by_bins(rng: np.random.Generator, count: int, rate: float) -> _TakesPart:
    bins, turns = round(1 / rate), np.zeros((count, _RECORDS + 1), np.int64)

    def takes_part(step: int) -> NDArray[Any]:
        if step % bins == 0:
            turns[:] = rng.integers(bins, size=turns.shape)
        return np.asarray(turns == step % bins)

    return takes_part


def gaussian_loss(x: Floats, sigma: float, rate: float) -> Floats:
    """The loss log((1 - q) + q e^((2x - 1) / (2 sigma^2))) of noisy sums ``x`` in clip norms."""
    grown = (2 * x - 1) / (2 * sigma * sigma)
    if rate == 1:
        return np.asarray(grown)
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + grown)) if rate else np.zeros_like(x)
