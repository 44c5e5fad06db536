"""Bounds on a composition without composing it: its largest loss, and what a single large loss reveals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privctl.accounting.pld.bounded_range import BoundedRange
from privctl.accounting.pld.grid_plan import RepeatedPair, sketch_edges
from privctl.accounting.pld.pairs import Array, Atoms, GaussianMixture, Laplace, Pair, Reversed, Sampled

#: Generous bound on the relative error of a probability.
_ROUNDING = 1e-9


def largest_loss(steps: Sequence[RepeatedPair]) -> float:
    """The epsilon of all ``steps`` together at delta 0, rounded up; inf if losses are unbounded."""
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
    """The smallest loss; -inf if losses are unbounded below."""
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
    """A lower bound on epsilon from the events "some step's loss exceeds l"; 0 if they give none.

    With probabilities P and Q of such an event, delta >= P - e^epsilon Q. Tight if the record takes part so rarely that
    a single step reveals it.
    """
    tail = log_delta - math.log(sum(step.count for step in steps)) - 5
    levels = np.unique(np.concatenate([sketch_edges(step, tail) for step in steps]))
    none_above_p, none_above_q = np.zeros((2, len(levels)))
    for step in steps:
        above_p, above_q = (_log_mass_above(part) for part in step.pair.cells(levels))
        none_above_p += step.count * _log_complement(above_p)
        none_above_q += step.count * _log_complement(above_q)
    with np.errstate(divide="ignore", invalid="ignore"):
        event_p, log_event_q = -np.expm1(none_above_p) * (1 - _ROUNDING), np.log(-np.expm1(none_above_q)) + _ROUNDING
        epsilons = np.log(np.maximum(event_p - math.exp(log_delta), 0.0)) - log_event_q
    return max(0.0, float(np.max(epsilons[np.isfinite(epsilons)], initial=0.0)))


def _log_mass_above(cells: Array) -> Array:
    """The log mass above each edge."""
    return np.asarray(np.logaddexp.accumulate(cells[::-1])[::-1][1:])


def _log_complement(log_mass: Array) -> Array:
    """log(1 - exp(log_mass))."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(-np.exp(np.minimum(log_mass, 0.0))))
