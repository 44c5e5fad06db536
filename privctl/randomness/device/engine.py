"""The layout of the keystream, and what an engine does with it.

A ChaCha20 block is 16 words of 32 bits, a function of a key, a counter and a nonce. The 128 bits that RFC 8439 calls
counter and nonce are here

    word 12, 13: the block's number, 64 bits        word 14: the step        word 15: lane (8 bits) | tensor (24 bits)

Element e of a tensor is in tile e // TILE. Its deviate is number e % TILE // LANES, from 0 to 7, of block
e // TILE * LANES + e % LANES, so that neighbouring threads write neighbouring elements. Words 4 q to 4 q + 3 of lane 0
give the deviates 2 q and 2 q + 1: a pair R cos A, R sin A with R = sqrt(-2 ln U).

U is represented by its distance from the nearer of 0 and 1: one bit for which, 63 bits for the distance. If these begin
with 13 zeros or more, 128 bits of lane 1 are appended; if that is still not enough, 128 of lane 2. So every deviate is
within 2^-48 R of an ideal one unless U or 1 - U is below 2^-269. Such a U has a radius above 19, where
``privctl.accounting.gridded`` claims nothing; with such a 1 - U, both deviates are below 2^-133.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

#: Keystream blocks per tile.
LANES = 128
#: Elements per tile.
TILE = 8 * LANES
#: Lanes of further bits for U.
FOLLOWING = 2
#: Significant bits of U that are needed: if it is less than 2^ENOUGH cells from the edge, further bits are appended.
ENOUGH = 50
#: Limits on step and tensor numbers.
MOST_STEPS, MOST_TENSORS = 1 << 31, 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRange:
    """``count`` elements of tensor number ``tensor``, beginning with element ``offset``."""

    tensor: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The keystream of one tensor in one step; raises ValueError for numbers out of range."""

    step: int
    tensor: int

    def __post_init__(self) -> None:
        if not (0 <= self.step < MOST_STEPS and 0 <= self.tensor < MOST_TENSORS):
            raise ValueError(f"step {self.step}, tensor {self.tensor} has no place in the keystream")


class NoiseEngine(Protocol):
    """Draws noise on one device. ``key`` is 8 words of 32 bits on that device, as ``key_words`` makes them."""

    @property
    def name(self) -> str:
        """The engine's name, for messages."""
        ...

    def words(self, key: Tensor, place: Place, first: int, count: int, lane: int = 0) -> Tensor:
        """``count`` blocks (``count``, 16) int32 of the keystream, from block ``first`` (below 2^63) on."""
        ...

    def deviates(self, key: Tensor, place: Place, tiles: int) -> Tensor:
        """The deviates (``tiles`` * TILE,) float64 of the first elements, as ``release`` adds them."""
        ...

    def release(self, flat: Tensor, key: Tensor, place: Place, offset: int, stddev: float) -> None:
        """Replace each entry x of ``flat`` (n,) by the multiple of ``spacing(stddev)`` nearest to x + N(0, stddev^2).

        ``flat`` holds the elements from ``offset`` on of the tensor of ``place``. NaN and infinity stay not finite.
        """
        ...

    def release_joined(self, flat: Tensor, key: Tensor, step: int, tiles: Tensor, stddev: float) -> None:
        """As ``release`` on each of the stretches concatenated in ``flat`` (n,), with the same bits, in one launch.

        ``tiles`` (k, 5) int64, on the same device, is the result of ``tiles_of`` for these stretches.
        """
        ...
