"""The distribution of a weight's move by noise alone, estimated from draws so that it applies to any optimizer.

The report's noise goes through the report's optimizer without any gradient. All weights then move independently with
the same symmetric distribution.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from verify.checkpoint_noise.values import Floats
from verify.weights.moves import coefficients, kept
from verify.weights.settings import TrainingFacts, UncheckableError

#: The most draws, and the most steps of all draws together, which take a second or two.
_DRAWS, _WORK = 400_000, 60_000_000
_FEWEST = 20_000
#: Quantile levels of |D| that bound the intervals, which are narrow near 0 and in the tails.
_SHARES = (
    0.002, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97, 0.99, 0.997, 0.9995,
)  # fmt: skip
_EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLaw:
    """Intervals between increasing ``edges`` [m - 1], and upper bounds on their probabilities, ``chances`` [m].

    ``scale`` is the root mean square of the moves.
    """

    edges: Floats
    chances: Floats
    scale: float


@functools.lru_cache(maxsize=8)
def law_of(settings: TrainingFacts, level: float) -> NoiseLaw:
    """The distribution of a move D by noise alone; all upper bounds hold except with probability ``level``.

    Raises UncheckableError if there are too many steps to simulate.
    """
    draws = min(_DRAWS, _WORK // settings.updates // len(settings.correlation))
    if draws < _FEWEST:
        raise UncheckableError(f"{settings.updates} updates are too many to draw from what noise alone would do")
    coins = np.random.default_rng(17)  # a fixed seed is fine: it only affects which errors of total ``level`` occur
    first, second = (np.abs(_moves(settings, draws // 2, coins)) for _ in range(2))
    positive = np.unique(np.quantile(first, _SHARES))
    positive = positive[positive > 0]
    edges = np.concatenate([-positive[::-1], positive])
    # Counts are of |D|: the middle interval contains both signs, every other interval only one.
    counts = np.histogram(second, np.concatenate([[0.0], positive, [np.inf]]))[0]
    bounds = _upper_limits(counts, len(second), level / len(counts))
    chances = np.concatenate([bounds[:0:-1] / 2, bounds[:1], bounds[1:] / 2])
    return NoiseLaw(edges=edges, chances=chances, scale=float(np.sqrt(np.mean(second * second))))


def _upper_limits(counts: Floats, trials: int, level: float) -> Floats:
    """The Clopper-Pearson upper limit of each probability."""
    inside = np.minimum(counts, trials - 1)
    return np.asarray(np.where(counts < trials, betaincinv(inside + 1, trials - inside, 1 - level), 1.0))


def _moves(settings: TrainingFacts, draws: int, coins: np.random.Generator) -> Floats:
    """Draws D for ``draws`` weights, from noise on the grid."""
    stddevs, grids = settings.noise_stddevs.tolist(), settings.grids.tolist()
    total, weights = np.zeros(draws), coefficients(settings)
    mean, square = np.zeros(draws), np.zeros(draws)
    own_coefficient, earlier_coefficients = settings.correlation[0], settings.correlation[1:]
    past: deque[Floats] = deque(maxlen=len(earlier_coefficients))
    rates = settings.rates * kept(settings)[:-1]
    for step in range(settings.updates):
        noise, grid = coins.standard_normal(draws), grids[step]
        noise *= stddevs[step] / grid
        for share, before in zip(earlier_coefficients, past, strict=False):
            noise -= share / grid * before
        np.rint(noise, out=noise)
        noise *= grid / own_coefficient
        past.appendleft(noise)
        if not settings.adaptive:
            total += weights[step] * noise
            continue
        mean *= settings.beta1
        mean += (1 - settings.beta1) * noise
        square *= settings.beta2
        square += (1 - settings.beta2) * noise * noise
        bias1, bias2 = (-math.expm1((step + 1) * math.log(b)) if b else 1.0 for b in (settings.beta1, settings.beta2))
        total += rates[step] / bias1 * mean / (np.sqrt(square / bias2) + _EPS)
    return total
