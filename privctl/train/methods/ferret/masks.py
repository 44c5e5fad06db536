"""The groups that publish in each step, drawn with a public seed, independently of the data."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from privctl.domain.checks import at_least, probability
from privctl.randomness import NoiseSource


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Each of ``groups`` fires in each of ``steps`` with probability ``fire_probability``, all independently.

    Nothing here is secret: the ``seed`` determines all masks, and guarantees hold conditionally on them. The
    probability is rounded down to a multiple of 2^-64, never up.
    """

    seed: bytes
    groups: int
    fire_probability: float
    steps: int
    _source: NoiseSource = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at_least("groups", self.groups, 1)
        at_least("steps", self.steps, 1)
        probability("fire_probability", self.fire_probability)
        key = hashlib.sha256(b"privctl ferret masks" + self.seed).digest()
        object.__setattr__(self, "_source", NoiseSource(key=key))

    def fired(self, step: int) -> tuple[int, ...]:
        """The groups that fire in ``step``, in increasing order; both are counted from 0."""
        if self.fire_probability == 1:
            return tuple(range(self.groups))
        threshold = np.uint64(int(self.fire_probability * 2.0**64))
        return tuple(np.flatnonzero(self._source.words(step, 0, self.groups) < threshold).tolist())

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How often each group fires in the whole run."""
        return self._tallied[0]

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The number of steps for each number of groups that fire together; silent steps are left out."""
        return self._tallied[1]

    @property
    def total(self) -> int:
        """How often any group fires in the whole run."""
        return sum(self.counts)

    @property
    def active_steps(self) -> int:
        """The number of steps in which at least one group fires."""
        return sum(self.sizes.values())

    @cached_property
    def _tallied(self) -> tuple[tuple[int, ...], dict[int, int]]:
        counts, sizes = np.zeros(self.groups, np.int64), Counter[int]()
        for step in range(self.steps):
            fired = self.fired(step)
            if fired:
                counts[list(fired)] += 1
                sizes[len(fired)] += 1
        return tuple(counts.tolist()), dict(sorted(sizes.items()))
