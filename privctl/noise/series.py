"""Sums of the steps' bounds over trainings of any length, in closed form or within a fixed number of terms.

The bound of each step is reduced by the weight decay of later steps: the total is the sum of
b(n) k^(T - n) over the steps n = 1 .. T, with k = 1 - learning rate * weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Steps that are added up one by one, at most; about half a second.
MOST_ADDED = 1 << 22
#: Steps added up at a time.
_BLOCK = 1 << 18
#: e^-x for larger x vanishes beside 1 in a float.
_NOTHING = 60 * math.log(2)


def geometric(log_ratio: float, terms: int) -> float:
    """1 + r + ... + r^(terms - 1) for r = e^``log_ratio``; infinite where it is too large for a float."""
    if log_ratio == 0:
        return float(terms)
    try:
        return math.expm1(terms * log_ratio) / math.expm1(log_ratio)
    except OverflowError:
        return math.inf


def steps_until_negligible(log_base: float) -> int:
    """The n from which e^(n ``log_base``), ``log_base`` < 0, is negligible beside 1."""
    return math.ceil(min(_NOTHING / -log_base, 1e18)) if log_base < 0 else 1 << 60


def accumulate(
    bound: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    limit: float,
    settled_at: int,
    steps: int,
    log_keep: float,
) -> float:
    """The sum of ``bound``(n) e^((``steps`` - n) ``log_keep``) over n = 1 .. ``steps``.

    ``bound`` takes an array of steps. From step ``settled_at`` on, or from ``MOST_ADDED`` on, ``limit`` stands for it,
    which must be no less.
    """
    head = min(steps, settled_at, MOST_ADDED)
    sums = []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(1, head + 1, _BLOCK):
            number = np.arange(start, min(start + _BLOCK, head + 1), dtype=np.float64)
            sums.append(float(np.dot(bound(number), np.exp((steps - number) * log_keep))))
    if not all(map(math.isfinite, sums)):
        return math.inf
    tail = limit * geometric(log_keep, steps - head) if steps > head else 0.0
    return math.fsum(sums) + tail
