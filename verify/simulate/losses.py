"""Privacy losses drawn from a mechanism, with the record and without it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privctl.domain.events import Batches, Event, LaplaceNoise, Ledger, RandomizedResponse, SampledGaussian

Floats = NDArray[np.float64]

_CHUNK = 20_000
_MOST = 1_000_000

#: A number of losses log(p / q), drawn with the record (True) or without it.
Draw = Callable[[np.random.Generator, int, bool], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class LossSamples:
    """Losses of outputs with the record and without it, shape (n,) each."""

    present: Floats
    absent: Floats

    def reversed(self) -> LossSamples:
        """The same with the data sets exchanged."""
        return LossSamples(-self.absent, -self.present)


def gaussian(mu: float) -> Draw:
    """One Gaussian of shift ``mu``: the loss is N(+-mu^2/2, mu^2)."""

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        return np.asarray(mu * rng.standard_normal(count) + (0.5 if present else -0.5) * mu * mu)

    return draw


def ledger_losses(ledger: Ledger) -> Draw | None:
    """The sum over all steps; None where an event is not simulated here (records in turn, batches of fixed size)."""
    parts = [(_step(event), event.steps) for event in ledger.events]
    if any(step is None for step, _ in parts):
        return None

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        total = np.zeros(count)
        for step, times in parts:
            assert step is not None
            for _ in range(times):
                total += step(rng, count, present)
        return total

    return draw


def _step(event: Event) -> Draw | None:
    if isinstance(event, SampledGaussian):
        return None if event.batches is not Batches.POISSON else _sampled_gaussian(event)
    if isinstance(event, LaplaceNoise):
        return _laplace(event)
    return _bits(event) if isinstance(event, RandomizedResponse) else None


def _sampled_gaussian(event: SampledGaussian) -> Draw:
    sigma, rate = event.noise_multiplier, event.sample_rate

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        x = sigma * rng.standard_normal(count)
        if present:
            x += rng.random(count) < rate
        return gaussian_loss(x, sigma, rate)

    return draw


def gaussian_loss(x: Floats, sigma: float, rate: float) -> Floats:
    """log((1 - q) + q e^((2x - 1) / (2 sigma^2))) of noisy sums ``x`` in clip norms."""
    grown = (2 * x - 1) / (2 * sigma * sigma)
    if rate == 1:
        return np.asarray(grown)
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + grown)) if rate else np.zeros_like(x)


def _laplace(event: LaplaceNoise) -> Draw:
    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        x = rng.laplace(0, event.scale, count)
        if present:
            x += rng.random(count) < event.sample_rate
        return np.asarray(np.log1p(event.sample_rate * np.expm1((np.abs(x) - np.abs(x - 1)) / event.scale)))

    return draw


def _bits(event: RandomizedResponse) -> Draw:
    kept = 1 / (1 + math.exp(-event.epsilon))

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        turned = (rng.random(count) < event.sample_rate) if present else np.zeros(count, bool)
        agree = rng.binomial(event.bits, np.where(turned, kept, 1 - kept))
        return np.asarray(np.log1p(event.sample_rate * np.expm1((2 * agree - event.bits) * event.epsilon)))

    return draw


def sample(draw: Draw, seed: int, seconds: float, most: int = _MOST) -> LossSamples:
    """As many losses as ``seconds`` allow, ``most`` at most, and one chunk at least."""
    rng = np.random.default_rng(seed)
    deadline = time.monotonic() + seconds
    parts: list[tuple[Floats, Floats]] = []
    while not parts or (len(parts) * _CHUNK < most and time.monotonic() < deadline):
        parts.append((draw(rng, _CHUNK, True), draw(rng, _CHUNK, False)))
    return LossSamples(*(np.concatenate(side) for side in zip(*parts, strict=True)))
