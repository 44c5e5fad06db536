"""Gaussian noise on the nodes of binary trees over the steps: equivalent to one Gaussian.

Each node has independent noise, so the sensitivity to a record is the square root of the sum over nodes of |the sum of
its contributions below the node|^2, which is largest if they are all equal (docs/mechanisms.md#tree-aggregation).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from privctl.accounting.events.one_gaussian import divergences_of, pair_of
from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.domain.events import TreeGaussian


@lru_cache(maxsize=64)
def squared_sensitivity(leaves: int, steps_per_pass: int, steps: int) -> int:
    """The squared L2 sensitivity of all nodes to a record, in squared clip norms, for the worst position in a pass.

    A node over c passes and r further steps holds a record c times, and once more if its position is among the r.
    """
    if leaves == steps_per_pass:  # the first leaf is below a node on every level of every tree
        return steps // leaves * leaves.bit_length() + (steps % leaves).bit_length()
    whole, changes = 0, np.zeros(steps_per_pass + 1, dtype=np.int64)  # differences between neighbouring positions
    leaves = min(leaves, steps)
    trees, left = divmod(steps, leaves)
    for level in range(leaves.bit_length()):
        size = 1 << level
        starts = np.add.outer(np.arange(trees) * leaves, np.arange(leaves >> level) * size).ravel()
        starts = np.append(starts, trees * leaves + np.arange(left >> level) * size)
        passes, more = divmod(size, steps_per_pass)
        whole += passes * passes * len(starts)
        first = starts % steps_per_pass
        wraps = first + more > steps_per_pass
        ends = np.where(wraps, first + more - steps_per_pass, first + more)
        begun, ended = (np.bincount(positions, minlength=len(changes)) for positions in (first, ends))
        changes += (2 * passes + 1) * (begun - ended)
        changes[0] += (2 * passes + 1) * int(wraps.sum())
    return whole + int(np.cumsum(changes[:-1]).max())


def _shift(event: TreeGaussian) -> float:
    return math.sqrt(squared_sensitivity(event.leaves, event.steps_per_pass, event.steps)) / event.noise_multiplier


ROW = EventAccounting(
    pair=pair_of(_shift),
    divergences=divergences_of(_shift),
    setting=NoiseSetting(field="noise_multiplier"),
    shift=_shift,
    full_shift=_shift,
    extreme=lambda event: event.noise_multiplier < 1e-6,
)
