"""The parameters of a buffered linear Toeplitz matrix that minimize the noise in sums of steps.

As a power series, c(x) = first * prod_j (1 - s_j x) / (1 - decays_j x). If decays_1 > s_1 > decays_2 > s_2 > ... > 0,
all weights are positive and sum to less than ``first``, and both C and C^-1 decay. McMahan, Xu and Zhang 2024, "A
Hassle-free Algorithm for Private Learning in Practice", section 4.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from privctl.accounting.buffered import BufferedMatrix, sensitivity
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.fixed_order import require_followed
from privctl.domain.ranges import BUFFERS

#: Parameters are optimized for at most this many steps, or for four passes if these are longer, up to the second limit.
_MANY, _MOST = 1 << 14, 1 << 17
#: The search runs over the logits of 1 - decay and 1 - s: their largest magnitude, and their smallest distance.
_FARTHEST, _NEAREST = 14.0, 0.02


@lru_cache(maxsize=64)
def buffered_matrix(buffers: int, steps_per_pass: int, steps: int) -> BufferedMatrix:
    """The matrix with the smallest ``prefix_error`` found for this number of ``buffers`` and a ``sensitivity`` of 1.

    Raises ValueError for a number of buffers out of range, and for too many steps or passes, or none.

    Example: 2 buffers, 10 steps per pass and 30 steps have an error of 3.68, and independent noise 6.82.
    """
    if not BUFFERS.low <= buffers <= BUFFERS.high:
        raise ValueError(f"buffers is {buffers}; it must lie between {BUFFERS.low:g} and {BUFFERS.high:g}")
    if steps < 1 or steps_per_pass < 1:
        raise ValueError(f"steps is {steps}, {steps_per_pass} a pass; both must be at least 1")
    require_followed(steps_per_pass, steps)
    longest = min(steps, max(_MANY, min(4 * steps_per_pass, _MOST)))
    best = min(
        (_optimized(start, steps_per_pass, longest) for start in _starts(buffers, longest)),
        key=lambda result: result[0],
    )
    return _sensitivity_at_most_one(_matrix(best[1]), steps_per_pass, steps)


def _starts(buffers: int, steps: int) -> list[Floats]:
    """Two starting points: equally spaced logits, in turn of 1 - decay and 1 - s, from about 1 / steps or its root."""
    last = 2.0
    return [np.linspace(_logit(first), last, 2 * buffers) for first in (0.5 / (steps + 1), 0.5 / math.sqrt(steps + 3))]


def _optimized(start: Floats, steps_per_pass: int, steps: int) -> tuple[float, Floats]:
    from scipy.optimize import minimize  # here, as importing it takes longer than most commands' accounting

    free = np.append(start[0], np.log(np.diff(start)))
    bounds = [(-_FARTHEST, _FARTHEST), *[(math.log(_NEAREST), math.log(_FARTHEST))] * (len(start) - 1)]

    def goal(values: Floats) -> float:
        return _log_error(_logits(values), steps_per_pass, steps)

    solution = minimize(
        goal,
        free,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 200, "ftol": 1e-11},
    )
    return float(solution.fun), _logits(solution.x)


def _logits(free: Floats) -> Floats:
    return np.asarray(free[0] + np.append(0.0, np.cumsum(np.exp(free[1:]))))


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def _roots(logits: Floats) -> tuple[Floats, Floats]:
    """The decays, and the counterparts s, which are the decays of C^-1."""
    values = 1 / (1 + np.exp(np.minimum(logits, 700.0)))
    return values[::2], values[1::2]


def _log_error(logits: Floats, steps_per_pass: int, steps: int) -> float:
    """Logarithm of the error times the sensitivity, by a cascade of first-order filters, which is stable."""
    from scipy.signal import lfilter  # here, as importing it takes longer than most commands' accounting

    decays, counterparts = _roots(logits)
    taking_part = np.zeros(steps)
    taking_part[::steps_per_pass] = 1.0
    column, rows = np.ones(steps), taking_part
    for decay, counterpart in zip(decays, counterparts, strict=True):
        column = lfilter([1.0, -decay], [1.0, -counterpart], column)
        rows = lfilter([1.0, -counterpart], [1.0, -decay], rows)
    error = float((1 - np.arange(steps) / steps) @ column**2)
    return 0.5 * (math.log(error) + math.log(float(rows @ rows)))


def _matrix(logits: Floats) -> BufferedMatrix:
    """The matrix with c_0 = 1 and these roots; its weights are the residues of c(x)."""
    decays, counterparts = _roots(logits)
    weights = []
    for column, decay in enumerate(decays):
        others = np.delete(decays, column)
        weights.append(
            float(
                (decay - counterparts[column]) * np.prod((decay - np.delete(counterparts, column)) / (decay - others))
            )
        )
    return BufferedMatrix(first=1.0, weights=tuple(weights), decays=tuple(map(float, decays)))


def _sensitivity_at_most_one(matrix: BufferedMatrix, steps_per_pass: int, steps: int) -> BufferedMatrix:
    """The matrix scaled to a ``sensitivity`` of at most 1."""
    scale = 1 / sensitivity(matrix, steps_per_pass, steps)
    while True:
        scaled = BufferedMatrix(
            first=scale * matrix.first,
            weights=tuple(scale * weight for weight in matrix.weights),
            decays=matrix.decays,
        )
        if sensitivity(scaled, steps_per_pass, steps) <= 1:
            return scaled
        scale -= scale * 2.0**-52
