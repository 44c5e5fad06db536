"""Which bits of the keystream are whose, and what an engine does with them.

A ChaCha20 block is 16 words of 32 bits, found by a key, a counter and a nonce. The 128 bits that RFC 8439 calls counter
and nonce are here

    word 12, 13: the block's number, 64 bits        word 14: the step        word 15: lane (8 bits) | tensor (24 bits)

Element e of a tensor lies in tile e // TILE. Its deviate is number e % TILE // LANES, from 0 to 7, of block
e // TILE * LANES + e % LANES, so that neighbouring threads write neighbouring elements. Words 4 q to 4 q + 3 of lane 0
make the deviates 2 q and 2 q + 1: a pair R cos A, R sin A with R = sqrt(-2 ln U).

U is measured from the nearer of 0 and 1: a bit says which, 63 bits how far. Where these start with 13 zeros or more,
and so are too few, 128 bits of lane 1 follow; if still too few, 128 of lane 2. So every deviate is within 2^-48 R of an
ideal one, but where U or 1 - U is below 2^-269. Such a U has a radius above 19, where ``privctl.accounting.gridded``
claims nothing; such a 1 - U leaves both deviates below 2^-133.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

#: Blocks, and so eight times as many elements, that are laid out together.
LANES = 128
#: Elements of a tile.
TILE = 8 * LANES
#: Lanes of bits that follow where the first ones are too few.
FOLLOWING = 2
#: Bits of U that have to count: below 2^ENOUGH cells from the edge, more follow.
ENOUGH = 50
#: Steps and tensors that have a place.
MOST_STEPS, MOST_TENSORS = 1 << 31, 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementRange:
    """The ``count`` elements from ``offset`` on of tensor number ``tensor``."""

    tensor: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The stream of one tensor in one step; raises ValueError for numbers that would share another's."""

    step: int
    tensor: int

    def __post_init__(self) -> None:
        if not (0 <= self.step < MOST_STEPS and 0 <= self.tensor < MOST_TENSORS):
            raise ValueError(f"step {self.step}, tensor {self.tensor} has no place in the keystream")


class NoiseEngine(Protocol):
    """Draws on one device. ``key`` is 8 words of 32 bits there, as ``key_words`` makes them."""

    @property
    def name(self) -> str:
        """What computes."""
        ...

    def words(self, key: Tensor, place: Place, first: int, count: int, lane: int = 0) -> Tensor:
        """The keystream (``count``, 16) int32 from block ``first`` (below 2^63) on."""
        ...

    def deviates(self, key: Tensor, place: Place, tiles: int) -> Tensor:
        """The deviates (``tiles`` TILE,) float64 of the first elements, as ``release`` adds them."""
        ...

    def release(self, flat: Tensor, key: Tensor, place: Place, offset: int, stddev: float) -> None:
        """Replace each entry x of ``flat`` (n,) by the multiple of ``spacing(stddev)`` nearest to x + N(0, stddev^2).

        ``flat`` are the elements from ``offset`` on of the tensor at ``place``. What is not finite stays so.
        """
        ...

    def release_joined(self, flat: Tensor, key: Tensor, step: int, tiles: Tensor, stddev: float) -> None:
        """As ``release`` of each of the stretches that ``flat`` (n,) joins, in one launch.

        ``tiles`` (k, 5) int64, there, is ``tiles_of`` these stretches. Bits are those that ``release`` gives them.
        """
        ...
