"""How far one example can move trained weights, in closed form if there is one.

The training is ``ClippedTraining``'s: E epochs of mini-batches of B, mean of gradients clipped to C, learning rate lr.
Sources: Hardt, Recht and Singer 2016 (steps that do not expand distances), Wu et al. 2017 (bolt-on), and the triangle
inequality for losses about which nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import ClippedTraining, Optimizer, Regime
from verify.recompute.epoch_maps import clipped_epoch, unclipped_epoch

#: The relative rounding error per term of a sum, and the most terms counted: longer sums are closed forms or err less.
_TERM_ROUNDING, _MOST_TERMS = 8 * 2.0**-53, 1 << 20
_ADAMS = (Optimizer.ADAM, Optimizer.ADAMW)
#: The most steps that are summed one by one, and the most that are simulated; both take a few seconds.
_MOST_ADDED, _MOST_FOLLOWED = 10_000_000, 1_000_000
#: Below this, a term added to 1 is lost to rounding, so all further terms are equal.
_NEGLIGIBLE = 2.0**-60
#: The number of steps summed at a time.
_BLOCK = 1 << 18
#: The number of possible visits simulated at a time.
_VISITS = 512

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


class TooManyStepsError(ValueError):
    """The training is too long for its bound to be recomputed; the message is a clause."""


@lru_cache(maxsize=64)
def sensitivity(training: ClippedTraining, regime: Regime, adjacency: Adjacency, dimension: int) -> float | None:
    """A bound on the L2 distance of the final weights, in their own units; None if the regime gives no bound.

    Raises TooManyStepsError if it would take more than a few seconds.

    Example: E=10, N=1000, B=5, lr=5e-5, C=1, convex, replace-one: 2e-4.
    """
    change = training.clip_norm * (2 if adjacency is Adjacency.REPLACE_ONE else 1)
    visit = training.learning_rate * change / training.batch_size
    if regime is Regime.NONCONVEX:
        return _any_loss(training, visit, dimension)
    if training.optimizer is not Optimizer.SGD:
        return None
    if regime is Regime.SMOOTH:
        return None if training.smoothness is None else _smooth_loss(training, change)
    bend = (training.smoothness or 0.0) + training.weight_decay
    if regime is Regime.CONVEX:
        return training.epochs * visit if training.learning_rate * bend <= 2 else None
    gamma = training.strong_convexity
    if gamma is None or training.learning_rate * gamma >= 1:
        return None
    if training.smoothness is not None and training.learning_rate * (bend + gamma) > 2:
        return None
    log_shrink = math.log1p(-training.learning_rate * gamma) * (training.dataset_size // training.batch_size)
    return visit * _geometric(log_shrink, training.epochs)


def rounding(training: ClippedTraining, regime: Regime) -> float:
    """The relative rounding error of ``sensitivity``."""
    terms = training.epochs if regime in (Regime.CONVEX, Regime.STRONGLY_CONVEX) else training.total_steps
    return (min(terms, _MOST_TERMS) + 1) * _TERM_ROUNDING


def least_nonconvex(training: ClippedTraining) -> float | None:
    """The distance that losses like -C |w| attain: the first visit decides a sign, and each later step adds 2 lr C.

    For zeroing out one example; None for optimizers without a known example of this kind.
    """
    if training.optimizer is not Optimizer.SGD:
        return None
    return _any_loss(training, training.learning_rate * training.clip_norm / training.batch_size, 1)


def _geometric(log_ratio: float, terms: int) -> float:
    """1 + r + ... + r^(terms - 1) for r = e^``log_ratio`` <= 1."""
    return float(terms) if log_ratio == 0 else math.expm1(terms * log_ratio) / math.expm1(log_ratio)


def _any_loss(t: ClippedTraining, visit: float, dimension: int) -> float:
    """The bound for any loss: every step after the first visit may move the runs apart by its full length."""
    steps = t.total_steps
    log_keep = math.log1p(-t.learning_rate * t.weight_decay)
    if t.optimizer in _ADAMS:
        return 2 * t.learning_rate * math.sqrt(dimension) * _adam(t, steps, log_keep)
    longest = 2 * t.learning_rate * t.clip_norm
    if t.optimizer is Optimizer.MOMENTUM:
        return longest / (1 - t.momentum) * _momentum(math.log(t.momentum), steps, log_keep)
    return visit * math.exp((steps - 1) * log_keep) + longest * _geometric(log_keep, steps - 1)


def _momentum(log_momentum: float, steps: int, log_keep: float) -> float:
    """The sum of (1 - m^n) k^(T - n) over the steps n = 1 .. T."""
    summed = _steps_to_sum(steps, log_momentum)
    head = math.fsum(
        float(np.dot(-np.expm1(number * log_momentum), np.exp((steps - number) * log_keep)))
        for number in _blocks(summed)
    )
    return head + _geometric(log_keep, steps - summed)


def _adam(t: ClippedTraining, steps: int, log_keep: float) -> float:
    """The sum of Adam's largest updates of a coordinate, in learning rates (Cauchy-Schwarz over its averages)."""
    if t.beta2 == 0:
        return _geometric(log_keep, steps) if t.beta1 == 0 else math.inf
    ratio, before, last, parts = t.beta1**2 / t.beta2, 0.0, 0.0, []
    slowest = max(t.beta1, t.beta2, ratio)
    summed = _steps_to_sum(steps, math.log(slowest))
    with np.errstate(over="ignore"):
        for number in _blocks(summed):
            squares = before + np.cumsum(ratio ** (number - 1))
            before = float(squares[-1])
            first = (1 - t.beta1) / (1 - t.beta1**number)
            second = (1 - t.beta2**number) / (1 - t.beta2)
            moves = first * np.sqrt(second) * np.sqrt(squares)
            last = float(moves[-1])
            parts.append(float(np.dot(moves, np.exp((steps - number) * log_keep))))
            if math.isinf(before):
                return math.inf
    return math.fsum(parts) + last * _geometric(log_keep, steps - summed)


def _steps_to_sum(steps: int, log_slowest: float) -> int:
    """The number of steps that must be summed one by one, until the slowest decaying power is negligible."""
    if log_slowest < 0:
        steps = min(steps, math.ceil(min(math.log(_NEGLIGIBLE) / log_slowest, float(1 << 60))))
    _require(steps, _MOST_ADDED, "added up")
    return steps


def _blocks(steps: int) -> Iterator[Floats]:
    """Yields the numbers 1 .. ``steps`` in blocks, so that memory does not grow with their number."""
    for first in range(1, steps + 1, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, steps + 1), dtype=np.float64)


def _require(steps: int, most: int, how: str) -> None:
    if steps > most:
        raise TooManyStepsError(f"more than {most} steps are not {how} here")


def _smooth_loss(t: ClippedTraining, change: float) -> float:
    """The bound for smooth losses, with the worst step of each epoch for the record's visit.

    All possible visits within an epoch are simulated together. A step is monotone in the distance, so the worst
    distance after an epoch is the worst start of the next. Runs of equal epochs in which no gradient is clipped, or all
    are, need no simulation: such an epoch is an affine map of the distance, composed by doubling.
    """
    assert t.smoothness is not None
    keep, steps = 1 - t.learning_rate * t.weight_decay, t.total_steps
    equal = steps % t.epochs == 0
    if not equal:  # every step must be simulated
        _require(steps, _MOST_FOLLOWED, "followed")
    distance, epoch, followed = 0.0, 0, 0
    while epoch < t.epochs:
        count = steps * (epoch + 1) // t.epochs - steps * epoch // t.epochs
        if equal:
            for line in (unclipped_epoch(t, count, change), clipped_epoch(t, count, change)):
                many, distance = line.run(distance, t.epochs - epoch)
                epoch += many
            if epoch == t.epochs:
                break
        followed += count
        _require(followed, _MOST_FOLLOWED, "followed")
        before, distance = distance, _worst_visit(t, distance, count, keep, change)
        if equal and distance == before:
            break
        epoch += 1
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
        if len(visited) > _VISITS:
            visited = np.array([visited.max()])
        waiting = keep * waiting + rate * first
    return float(visited.max())
