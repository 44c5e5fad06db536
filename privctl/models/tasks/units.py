"""Which example of a unit takes part in a step."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence

import numpy as np


def content_key(*pieces: bytes) -> int:
    """A 64-bit hash of the content."""
    hasher = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        hasher.update(len(piece).to_bytes(8, "little") + piece)
    return int.from_bytes(hasher.digest(), "little")


class Units:
    """Examples by the unit they belong to.

    A unit takes part with one example, drawn in proportion to the ``shares`` of its examples (their predicted tokens,
    say): its expected gradient before clipping is that of the mean over all of them, and clipping that one example
    bounds all that the unit does to the step, however many records it has. The draw for a unit depends on the
    unit's own content, so whether another unit is there makes no difference to it.
    """

    def __init__(self, owners: Sequence[Hashable], shares: Sequence[int], keys: Sequence[int]) -> None:
        """All three have one entry an example: its unit, its share (at least 1), its content's key."""
        members: dict[Hashable, list[int]] = {}
        for example, owner in enumerate(owners):
            members.setdefault(owner, []).append(example)
        self._members = tuple(members.values())
        self._shares = np.asarray(shares, np.int64)
        self._keys = [
            0 if len(m) == 1 else content_key(*(keys[e].to_bytes(8, "little") for e in m)) for m in self._members
        ]

    def __len__(self) -> int:
        return len(self._members)

    def members(self, unit: int) -> Sequence[int]:
        """The examples of ``unit``."""
        return self._members[unit]

    def draw(self, units: Sequence[int], seed: int, step: int) -> Iterator[int]:
        """One example of each of ``units``, in their order."""
        for unit in units:
            members = self._members[unit]
            if len(members) == 1:
                yield members[0]
                continue
            ends = self._shares[members].cumsum()
            point = np.random.default_rng((seed, step, self._keys[unit])).integers(int(ends[-1]))
            yield members[int(np.searchsorted(ends, point, side="right"))]
