"""Sums of per-step bounds over training runs of any length, in closed form or with a limited number of terms.

The weight decay of later steps reduces the bound of each step: the total is the sum of
b(n) k^(T - n) over the steps n = 1 .. T, with k = 1 - learning rate * weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The most steps that are added up one by one; takes about half a second.
MOST_ADDED = 1 << 22
#: Steps added up at a time.
_BLOCK = 1 << 18
#: For larger x, e^-x is negligible relative to 1 in double precision.
_NOTHING = 60 * math.log(2)


def geometric(log_ratio: float, terms: int) -> float:
    """1 + r + ... + r^(``terms`` - 1) for r = e^``log_ratio``; infinite if too large for a float."""
    if log_ratio == 0:
        return float(terms)
    try:
        return math.expm1(terms * log_ratio) / math.expm1(log_ratio)
    except OverflowError:
        return math.inf


def steps_until_negligible(log_base: float) -> int:
    """The n from which e^(n ``log_base``) is negligible relative to 1; practically infinite if ``log_base`` >= 0."""
    return math.ceil(min(_NOTHING / -log_base, 1e18)) if log_base < 0 else 1 << 60


def accumulate(
    bound: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    limit: float,
    constant_from: int,
    steps: int,
    log_keep: float,
) -> float:
    """The sum of ``bound``(n) e^((``steps`` - n) ``log_keep``) over n = 1 .. ``steps``.

    ``bound`` takes an array of step numbers. After step ``constant_from``, or after ``MOST_ADDED`` steps, ``limit`` is
    used instead, which must not be smaller.
    """
    head = min(steps, constant_from, MOST_ADDED)
    sums = []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(1, head + 1, _BLOCK):
            number = np.arange(start, min(start + _BLOCK, head + 1), dtype=np.float64)
            sums.append(float(np.dot(bound(number), np.exp((steps - number) * log_keep))))
    if not all(map(math.isfinite, sums)):
        return math.inf
    tail = limit * geometric(log_keep, steps - head) if steps > head else 0.0
    return math.fsum(sums) + tail
