"""Draws the examples that a unit contributes to a step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def content_key(*pieces: bytes) -> int:
    """A 64-bit hash of the ``pieces``, each preceded by its length."""
    hasher = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        hasher.update(len(piece).to_bytes(8, "little") + piece)
    return int.from_bytes(hasher.digest(), "little")


class Units:
    """Examples grouped by the unit that they belong to.

    A sampled unit contributes one example, drawn in proportion to the ``shares`` of its examples (such as their counted
    tokens). So its expected gradient before clipping is that of the weighted mean over all of them, and clipping that
    one example bounds the unit's whole contribution to the step, however many records it has. The draw depends only on
    the unit's own content, so adding or removing another unit does not affect it.
    """

    def __init__(self, owners: NDArray[np.int64], shares: NDArray[np.int32], keys: NDArray[np.uint64]) -> None:
        """All three have one entry per example: its unit, its share (at least 1), and its content key.

        Units are numbered from 0, in the order of their first examples.
        """
        self._count = int(owners.max()) + 1 if len(owners) else 0
        self._owners, self._shares, self._keys = owners, shares, keys
        self._order: NDArray[np.int64] | None = None  # None if every unit is the example of the same number
        if self._count < len(owners):
            self._order = np.argsort(owners, kind="stable")
            self._ends = np.bincount(owners).cumsum()

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The content key of each example."""
        return self._keys

    def members(self, unit: int) -> list[int]:
        """The examples of ``unit``."""
        if self._order is None:
            return [int(unit)]
        begin = int(self._ends[unit - 1]) if unit else 0
        members: list[int] = self._order[begin : int(self._ends[unit])].tolist()
        return members

    def owner(self, example: int) -> int:
        """The unit of ``example``."""
        return int(self._owners[example])

    def draw_several(self, units: Sequence[int], seed: int, step: int, most: int) -> Iterator[tuple[int, ...]]:
        """Up to ``most`` examples of each of ``units``, in the order of ``units``, each unit's examples sorted.

        From a unit with more, ``most`` are drawn without replacement, successively in proportion to their shares.
        """
        for unit in units:
            members = self.members(unit)
            if len(members) <= most:
                yield tuple(members)
                continue
            shares = self._shares[members].astype(np.float64)
            drawn = self._generator(members, seed, step).choice(
                len(members), most, replace=False, p=shares / shares.sum()
            )
            yield tuple(members[place] for place in sorted(drawn.tolist()))

    def _generator(self, members: Sequence[int], seed: int, step: int) -> np.random.Generator:
        """The generator for the unit with these ``members``, seeded by their content."""
        key = content_key(*(int(self._keys[member]).to_bytes(8, "little") for member in members))
        return np.random.default_rng((seed, step, key))

    def draw(self, units: Sequence[int], seed: int, step: int) -> Iterator[int]:
        """One example of each of ``units``, in the order of ``units``."""
        for unit in units:
            members = self.members(unit)
            if len(members) == 1:
                yield members[0]
                continue
            ends = self._shares[members].cumsum(dtype=np.int64)
            point = self._generator(members, seed, step).integers(int(ends[-1]))
            yield members[int(np.searchsorted(ends, point, side="right"))]
