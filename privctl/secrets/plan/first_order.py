"""A first-order method for programs too large to factorize.

The primal-dual hybrid gradient method (Chambolle and Pock 2011) with diagonal step sizes (Pock and Chambolle 2011),
reflected and anchored at the last restart (Halpern iteration), restarted when the fixed-point residual has fallen, the
weight between primal and dual moves balanced at each restart (after Lu and Yang 2024 and Applegate and others 2021).
One iteration is one product with the matrix and one with its transpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.progress import Advance, silent
from privctl.secrets.plan.packing import Packing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Restart when the residual has fallen to this share of the last restart's, ...
_ENOUGH = 0.2
#: ... or to this one and begins to rise again, ...
_SOME = 0.8
#: ... or when a round has taken this share of all iterations so far.
_LONG = 0.36
_EVERY = 8
_LOOK = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstOrderSolution:
    """``weights`` [variables] and ``multipliers`` [constraints], as good as the method got them."""

    weights: Floats
    multipliers: Floats
    iterations: int


@dataclass(slots=True, eq=False)
class _Point:
    weights: Floats
    multipliers: Floats


def first_order(
    problem: Packing,
    gap: float,
    *,
    most_iterations: int = 100_000,
    advance: Advance = silent,
) -> FirstOrderSolution:
    """The best weights and multipliers found when their relative gap is at most ``gap``, or the iterations are spent.

    ``advance`` receives the progress towards ``gap`` since the last call, as a share on a logarithmic scale.
    """
    degrees = np.diff(problem.transposed.indptr).astype(np.float64)
    sizes = np.diff(problem.matrix.indptr).astype(np.float64)
    start = _Point(problem.repaired(np.ones(len(problem.open))), np.zeros(len(problem.limits)))
    best, lowest, highest = start, float(start.weights.sum()), problem.upper_bound(start.multipliers)
    at, anchor, balance = start, start, 1.0
    since, first, last, told = 0, math.nan, math.inf, 0.0
    for iteration in range(1, most_iterations + 1):
        to = _move(problem, at, degrees, sizes, balance)
        restart = False
        if since % _EVERY == 0:
            residual = _residual(problem, at, to, degrees, sizes, balance)
            first = residual if since == 0 else first
            restart = residual <= _ENOUGH * first or (last < residual <= _SOME * first)
            restart = since > 0 and (restart or since >= _LONG * iteration)
            last = residual
        if restart or iteration % _LOOK == 0:
            weights = problem.repaired(to.weights)
            if (total := float(weights.sum())) > lowest:
                best, lowest = _Point(weights, best.multipliers), total
            if (bound := problem.upper_bound(to.multipliers)) < highest:
                best, highest = _Point(best.weights, to.multipliers), bound
            found = (highest - lowest) / (highest + problem.settled)
            if found <= gap:
                break
            way = min(1.0, max(0.0, math.log(min(found, 1.0)) / math.log(gap)))
            advance(max(0.0, way - told))
            told = max(told, way)
        if restart:
            balance = _balanced(to, anchor, degrees, sizes, balance)
            at = anchor = to
            since, last = 0, math.inf
            continue
        since += 1
        share = since / (since + 1)
        at = _Point(
            share * (2 * to.weights - at.weights) + (1 - share) * anchor.weights,
            share * (2 * to.multipliers - at.multipliers) + (1 - share) * anchor.multipliers,
        )
    return FirstOrderSolution(weights=best.weights, multipliers=best.multipliers, iterations=iteration)


def _move(problem: Packing, at: _Point, degrees: Floats, sizes: Floats, balance: float) -> _Point:
    """One step of the method: ``balance`` shortens primal steps and lengthens dual ones."""
    gain = 1 - problem.transposed @ at.multipliers
    weights = np.clip(at.weights + gain / (balance * degrees), 0, 1)
    excess = problem.matrix @ (2 * weights - at.weights) - problem.limits
    return _Point(weights, np.maximum(0, at.multipliers + balance / sizes * excess))


def _residual(problem: Packing, at: _Point, to: _Point, degrees: Floats, sizes: Floats, balance: float) -> float:
    """How far the step went, in the norm in which steps are averaged."""
    primal, dual = to.weights - at.weights, to.multipliers - at.multipliers
    square = balance * degrees @ primal**2 + sizes @ dual**2 / balance - 2 * dual @ (problem.matrix @ primal)
    return math.sqrt(max(0.0, float(square)))


def _balanced(to: _Point, anchor: _Point, degrees: Floats, sizes: Floats, balance: float) -> float:
    """The balance at which both parts would have moved alike, halfway from the last one on a logarithmic scale."""
    primal = math.sqrt(float(degrees @ (to.weights - anchor.weights) ** 2))
    dual = math.sqrt(float(sizes @ (to.multipliers - anchor.multipliers) ** 2))
    return math.sqrt(balance * dual / primal) if primal > 1e-12 and dual > 1e-12 else balance
