"""Bounds on delta at an epsilon from a sample of privacy losses, with confidence.

The published test counts how often the loss exceeds epsilon. That frequency is not a bound on delta: the loss of a
private mechanism may exceed epsilon often, and a test that draws from an assumed shift does not test the mechanism at
all. The two tests below are sound. Neither can prove privacy, since each is about one pair of data sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from verify.laws.common import beta_quantile
from verify.simulate.losses import Floats, LossSamples

_EVENTS = 200


@dataclass(frozen=True, slots=True)
class SimulatedDelta:
    """delta lies between ``lower`` and ``upper`` with the requested confidence; ``threshold`` defines the event."""

    estimate: float
    lower: float
    upper: float
    threshold: float = math.nan


def violation_rate(losses: Floats, epsilon: float) -> float:
    """The published test: the fraction of losses above ``epsilon``."""
    return float(np.mean(losses > epsilon))


def black_box(sample: LossSamples, epsilon: float, level: float) -> SimulatedDelta:
    """Bounds P(loss > c) - e^epsilon Q(loss > c) on one half of the sample, for the c that is best on the other half.

    Clopper-Pearson bounds at ``level`` / 2 each. ``upper`` is 1, since other events may reveal more.
    """
    half = len(sample.present) // 2
    marks = np.unique(np.quantile(sample.present[:half], np.linspace(0, 1 - 1 / max(half, 2), _EVENTS)))
    marks = np.append(marks, epsilon)
    factor = math.exp(min(epsilon, 700.0))
    present, absent = (_above(side[:half], marks) / half for side in (sample.present, sample.absent))
    # Approximates the bound that the other half will give.
    room = 3 * (np.sqrt(present / half) + factor * np.sqrt((absent + 1 / half) / half))
    threshold = float(marks[int(np.argmax(present - factor * absent - room))])
    count = len(sample.present) - half
    hits, misses = (int(_above(side[half:], np.array([threshold]))[0]) for side in (sample.present, sample.absent))
    low = beta_quantile(level / 2, hits, count - hits + 1) if hits else 0.0
    high = beta_quantile(1 - level / 2, misses + 1, count - misses) if misses < count else 1.0
    estimate = max(0.0, (hits - factor * misses) / count)
    return SimulatedDelta(estimate, max(0.0, low - factor * high), 1.0, threshold)


def _above(losses: Floats, marks: Floats) -> Floats:
    return np.asarray(len(losses) - np.searchsorted(np.sort(losses), marks, side="right"), dtype=np.float64)


def white_box(losses: Floats, epsilon: float, level: float) -> SimulatedDelta:
    """Bounds delta = E_P max(0, 1 - e^(epsilon - loss)) by empirical Bernstein (Maurer and Pontil 2009)."""
    shares = -np.expm1(np.minimum(epsilon - losses, 0.0))
    count, mean = len(shares), float(shares.mean())
    log_term = math.log(4 / level)
    room = math.sqrt(2 * float(shares.var(ddof=1)) * log_term / count) + 7 * log_term / (3 * (count - 1))
    return SimulatedDelta(mean, max(0.0, mean - room), min(1.0, mean + room), epsilon)
