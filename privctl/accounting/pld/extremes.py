"""Bounds on a composition without composing it: its largest loss, and what one large loss alone gives away."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privctl.accounting.pld.bounded_range import BoundedRange
from privctl.accounting.pld.grid_plan import RepeatedPair, sketch_edges
from privctl.accounting.pld.pairs import Array, Atoms, GaussianMixture, Laplace, Pair, Reversed, Sampled

#: Relative error of a probability here, with room.
_ROUNDING = 1e-9


def largest_loss(steps: Sequence[RepeatedPair]) -> float:
    """An epsilon of all ``steps`` together at delta 0, rounded up; inf where losses have no bound."""
    return sum(step.count * _largest_loss(step.pair) for step in steps) * (1 + _ROUNDING)


def _largest_loss(pair: Pair) -> float:
    if isinstance(pair, Laplace):
        return 1 / pair.scale
    if isinstance(pair, BoundedRange):
        return pair.epsilon
    if isinstance(pair, Atoms):
        return math.inf if pair.infinite > 0 else pair.losses[-1]
    if isinstance(pair, Sampled):
        most = _largest_loss(pair.base)
        return float(np.logaddexp(math.log1p(-pair.rate), math.log(pair.rate) + most)) if pair.rate < 1 else most
    if isinstance(pair, Reversed):
        return -_smallest_loss(pair.pair)
    return math.inf


def _smallest_loss(pair: Pair) -> float:
    """The least loss; -inf where there is none."""
    if isinstance(pair, Laplace):
        return -1 / pair.scale
    if isinstance(pair, BoundedRange):
        return -pair.epsilon
    if isinstance(pair, Atoms):
        return -math.inf if pair.infinite > 0 else pair.losses[0]
    if isinstance(pair, GaussianMixture):
        return math.log(pair.weights[0]) if pair.shifts[0] == 0 and pair.weights[0] > 0 else -math.inf
    if isinstance(pair, Sampled):
        return (
            math.log1p(pair.rate * math.expm1(_smallest_loss(pair.base)))
            if pair.rate < 1
            else _smallest_loss(pair.base)
        )
    return -math.inf


def floor_by_one_loss(steps: Sequence[RepeatedPair], log_delta: float) -> float:
    """An epsilon below which the delta is exceeded, from the events "some step's loss exceeds l"; 0 if none shows it.

    With probabilities P and Q of such an event, delta >= P - e^epsilon Q. Sharp where the record takes part so rarely
    that a single step gives it away.
    """
    tail = log_delta - math.log(sum(step.count for step in steps)) - 5
    levels = np.unique(np.concatenate([sketch_edges(step, tail) for step in steps]))
    absent_p, absent_q = np.zeros((2, len(levels)))
    for step in steps:
        above_p, above_q = (_log_mass_above(part) for part in step.pair.cells(levels))
        absent_p += step.count * _log_complement(above_p)
        absent_q += step.count * _log_complement(above_q)
    with np.errstate(divide="ignore", invalid="ignore"):
        present, noise = -np.expm1(absent_p) * (1 - _ROUNDING), np.log(-np.expm1(absent_q)) + _ROUNDING
        gains = np.log(np.maximum(present - math.exp(log_delta), 0.0)) - noise
    return max(0.0, float(np.max(gains[np.isfinite(gains)], initial=0.0)))


def _log_mass_above(cells: Array) -> Array:
    """Log mass above each edge."""
    return np.asarray(np.logaddexp.accumulate(cells[::-1])[::-1][1:])


def _log_complement(log_mass: Array) -> Array:
    """log(1 - exp(log_mass))."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(-np.exp(np.minimum(log_mass, 0.0))))
