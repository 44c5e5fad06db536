"""Gaussian noise on the nodes of binary trees over the steps, in passes of fixed order.

A record at position p takes part in steps p, p + b, p + 2b, ... On level l, step t lies in node floor((t mod L) / 2^l)
of tree floor(t / L), which is released if all of its steps are within the tree. A record moves a node by at most as
many clip norms as it has steps below it, and all nodes together by the root of the sum of squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privctl.domain.events import SampledGaussian, TreeGaussian
from privctl.reports.parameters import BudgetParameters
from verify.events.fixed_order import row_of_passes
from verify.events.row import OF_STEPS, Draw, Floats, PlannedAs

Whole = np.ndarray[tuple[int], np.dtype[np.int64]]


@lru_cache(maxsize=64)
def moved_by_one(leaves: int, steps_per_pass: int, steps: int) -> int:
    """The squared distance, in clip norms, by which the worst position moves all nodes, counting steps node by node."""
    if steps_per_pass == leaves:  # once per tree: the record of the first step is in one node on every level
        trees = [leaves] * min(1, steps // leaves) + [steps % leaves]
        levels = [sum(1 << level <= tree for level in range(64)) for tree in trees]
        return levels[0] * (steps // leaves) + levels[-1]
    times = np.arange(steps)
    total = np.zeros(steps_per_pass, dtype=np.int64)
    for level in range(min(leaves, steps).bit_length()):
        nodes, position = _released(times, leaves, steps, level), times % steps_per_pass
        seen = nodes >= 0
        cells, counts = np.unique(nodes[seen] * steps_per_pass + position[seen], return_counts=True)
        total += np.bincount(cells % steps_per_pass, counts.astype(np.int64) ** 2, steps_per_pass).astype(np.int64)
    return int(total.max())


def _released(times: Whole, leaves: int, steps: int, level: int) -> Whole:
    """The index of the node on ``level`` that contains each of ``times``; -1 if it is never complete."""
    tree, within = times // leaves, times % leaves
    of_tree = np.minimum(leaves, steps - tree * leaves)
    node = within >> level
    return np.where((node + 1) << level <= of_tree, tree * ((leaves >> level) + 1) + node, -1)


def _squared_shift(event: TreeGaussian) -> float:
    return moved_by_one(event.leaves, round(1 / event.sample_rate), event.steps) / event.noise_multiplier**2


def _whole(event: TreeGaussian) -> SampledGaussian:
    """The single Gaussian that all trees together are equivalent to."""
    return SampledGaussian(noise_multiplier=1 / math.sqrt(_squared_shift(event)))


def toy_training(event: TreeGaussian, steps: int, *, noise: float = 1.0) -> Draw:
    """Draws losses of ``steps`` steps that release every node once it is complete, for the first record.

    Its contribution is the clip norm along an axis of its own. ``noise`` scales the noise that is added: 1 is correct,
    and 0.5 is a fault that a test must detect.
    """
    length, sigma = round(1 / event.sample_rate), event.noise_multiplier

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        losses = np.zeros(count)
        open_nodes: dict[int, int] = {}  # for each level, how often the record took part in the current node
        for step in range(steps):
            done = step % event.leaves + 1
            if done == 1:
                open_nodes = dict.fromkeys(range(event.leaves.bit_length()), 0)
            for level in open_nodes:
                open_nodes[level] += step % length == 0
                if done % (1 << level) == 0:
                    released = open_nodes[level] * present + noise * sigma * rng.standard_normal(count)
                    losses += open_nodes[level] * (released - open_nodes[level] / 2) / sigma**2
                    open_nodes[level] = 0
        return losses

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParameters(BudgetParameters):
    """A plan of sums along trees of ``tree_steps`` steps."""

    tree_steps: int | None = None


ROW = row_of_passes(
    PlannedAs(
        mechanism="tree",
        parameters=TreeParameters,
        fields={"noise_multiplier": ("noise_multiplier", None), "tree_steps": ("leaves", None), **OF_STEPS},
        solved={"noise multiplier": "noise_multiplier"},
    ),
    _whole,
    _squared_shift,
    toy_training,
)
