"""How far one example can move trained weights, from sums in closed form where there is one.

The training is ``ClippedTraining``'s: E epochs of mini-batches of B, mean of gradients clipped to C, learning rate lr.
Sources: Hardt, Recht and Singer 2016 (steps that do not expand distances), Wu et al. 2017 (bolt-on), and the triangle
inequality for losses about which nothing is known.
"""

from __future__ import annotations

import math

import numpy as np

from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import ClippedTraining, Optimizer, Regime

#: What float arithmetic may add to or take off these sums for each of their terms, relatively.
_TERM_ROUNDING = 8 * 2.0**-53
_ADAMS = (Optimizer.ADAM, Optimizer.ADAMW)


def sensitivity(training: ClippedTraining, regime: Regime, adjacency: Adjacency, dimension: int) -> float | None:
    """The L2 distance of the final weights, in their own units; None where the regime says nothing here.

    Example: E=10, N=1000, B=5, lr=5e-5, C=1, convex, replace-one: 2e-4.
    """
    change = training.clip_norm * (2 if adjacency is Adjacency.REPLACE_ONE else 1)
    visit = training.learning_rate * change / training.batch_size
    if regime is Regime.NONCONVEX:
        return _anything(training, visit, dimension)
    if training.optimizer is not Optimizer.SGD:
        return None
    if regime is Regime.SMOOTH:
        return None if training.smoothness is None else _smooth(training, change)
    bend = (training.smoothness or 0.0) + training.weight_decay
    if regime is Regime.CONVEX:
        return training.epochs * visit if training.learning_rate * bend <= 2 else None
    gamma = training.strong_convexity
    if gamma is None or training.learning_rate * gamma >= 1:
        return None
    if training.smoothness is not None and training.learning_rate * (bend + gamma) > 2:
        return None
    shrink = (1 - training.learning_rate * gamma) ** (training.dataset_size // training.batch_size)
    return visit * math.fsum(shrink**epoch for epoch in range(training.epochs))


def rounding(training: ClippedTraining, regime: Regime) -> float:
    """How far ``sensitivity`` may be off, relatively."""
    terms = training.epochs if regime in (Regime.CONVEX, Regime.STRONGLY_CONVEX) else training.total_steps
    return (terms + 1) * _TERM_ROUNDING


def least_nonconvex(training: ClippedTraining) -> float | None:
    """What losses such as -C |w| reach: a first visit decides, and every later step parts the runs by 2 lr C.

    Zeroing one example; None for optimizers for which no such case is known here.
    """
    if training.optimizer is not Optimizer.SGD:
        return None
    return _anything(training, training.learning_rate * training.clip_norm / training.batch_size, 1)


def _anything(t: ClippedTraining, visit: float, dimension: int) -> float:
    """Any loss: every step after the first visit may part the runs by its whole length."""
    steps = t.total_steps
    keep = 1 - t.learning_rate * t.weight_decay
    number = np.arange(1, steps + 1, dtype=np.float64)
    if t.optimizer in _ADAMS:
        lengths = 2 * t.learning_rate * math.sqrt(dimension) * _adam(t, number)
    elif t.optimizer is Optimizer.MOMENTUM:
        lengths = -2 * t.learning_rate * t.clip_norm * np.expm1(number * math.log(t.momentum)) / (1 - t.momentum)
    else:
        lengths = np.full(steps, 2 * t.learning_rate * t.clip_norm)
        lengths[0] = visit
    return math.fsum(lengths * keep ** (steps - number))


def _adam(
    t: ClippedTraining, number: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Adam's longest move of a coordinate at each step, in learning rates (Cauchy-Schwarz over its averages)."""
    if t.beta2 == 0:
        return np.full_like(number, 1.0 if t.beta1 == 0 else math.inf)
    with np.errstate(over="ignore"):
        squares = np.cumsum((t.beta1**2 / t.beta2) ** (number - 1))
        first = (1 - t.beta1) / (1 - t.beta1**number)
        second = (1 - t.beta2**number) / (1 - t.beta2)
        return np.asarray(first * np.sqrt(second) * np.sqrt(squares))


def _smooth(t: ClippedTraining, change: float) -> float:
    """Gradients that are Lipschitz with the smoothness: the worst step of each epoch for its visit.

    All visits of an epoch are followed beside each other; a step maps larger distances to larger ones, so the worst of
    an epoch is the worst to begin the next with.
    """
    assert t.smoothness is not None
    keep, steps = 1 - t.learning_rate * t.weight_decay, t.total_steps
    distance = 0.0
    for epoch in range(t.epochs):
        count = steps * (epoch + 1) // t.epochs - steps * epoch // t.epochs
        distance = _worst_visit(t, distance, count, keep, change)
    return distance


def _worst_visit(t: ClippedTraining, start: float, count: int, keep: float, change: float) -> float:
    assert t.smoothness is not None
    rate, clip = t.learning_rate, t.clip_norm
    visited = np.empty(0)
    waiting = start
    for _ in range(count):
        growth = np.minimum(t.smoothness * visited, 2 * clip)
        first = min(t.smoothness * waiting, 2 * clip)
        now = keep * waiting + rate * ((t.batch_size - 1) * first + change) / t.batch_size
        visited = np.append(keep * visited + rate * growth, now)
        if len(visited) > 4096:
            visited = np.array([visited.max()])
        waiting = keep * waiting + rate * first
    return float(visited.max())
