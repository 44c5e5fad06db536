"""Sums of values and Gaussian noise, rounded exactly onto a public grid, so that no low-order bits leak.

The set of floats that x + z can take reveals much about x (Mironov 2012; Haney et al. 2022; Holohan et al. 2024). Here
the release is a function of one integer for each value x,

    n = the integer nearest to (x + Z) / g,    g = ``spacing(stddev)``, a power of two,

where Z is very close to an exact Gaussian (``deviates``). If Z were exact, n would be post-processing of the Gaussian
mechanism on the float x; the cost of the difference is counted in ``privctl.accounting.gridded``. Everything else is
exact: x / g, its nearest integer m and the remainder; n g is finally rounded to the output's format.

Most deviates are computed in float32. If a sum is so close to the midpoint of two integers that the float32 error could
decide, it is computed again in float64 from the same bits and further ones. These also have fixed places in the
keystream, so every n equals that of the float64 sampler, whichever code computes in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from privctl.randomness import deviates
from privctl.randomness.deviates import FAST

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A grid has between 2^FINENESS and 2^(FINENESS + 1) points per standard deviation.
FINENESS = 5

#: Values computed at a time, in arrays that fit a core's cache; smaller tiles would need more calls.
TILE = 1 << 16
#: Bytes of keystream drawn at a time, by encrypting as many zeros.
_DRAWN = 1 << 17

#: 1.5 2^23: adding and subtracting this many steps rounds a float32 below 2^22 steps to the nearest multiple of the
#: step, never to -0.
TO_STEPS = 1.5 * 2.0**23
#: Sums up to this many grid steps are formed directly; their float32 error stays below 2^-10 of a step.
_NEAR = 2.0**14
#: The largest radius in float32: U is above 2^-32.
REACH = 6.7
#: Sums above this many grid steps are left to float64.
_FAR = 2.0**100
#: Range of spacings, including those of the increments, for which nothing overflows or underflows in float32.
_LEAST, _MOST = 2.0**-50, 2.0**50


class BlockBits(Protocol):
    """The random bits of one block of noise; each method always returns the same ones."""

    def leading(self, count: int, zeros: memoryview, out: bytearray) -> NDArray[np.int32]:
        """The ``count`` leading words, drawn into ``out``."""
        ...

    def following(self, pairs: NDArray[np.intp]) -> NDArray[np.uint64]:
        """The words (2 n,) that follow those of n ``pairs`` of the block: for all first words, then all second ones."""
        ...

    def deep(self, count: int) -> list[int]:
        """``count`` words of 64 bits, for the rare pairs that need more; see ``deviates.Deep``."""
        ...


class BlockBuffers:
    """One thread's work arrays: random words of blocks of up to ``block`` values, and arrays for one tile."""

    def __init__(self, block: int) -> None:
        self._size, tile = block * 4, min(block, TILE)
        self.zeros = memoryview(bytes(min(self._size, _DRAWN)))
        self.pairs = [np.empty((tile + 1) // 2, np.float32) for _ in range(3)]
        self.deviates, self.sums, self.points = (np.empty(tile, np.float32) for _ in range(3))
        self.flags = np.empty(tile, np.bool_)
        self._block = block
        self._marks: NDArray[np.bool_] | None = None
        self._streams: list[bytearray] = []
        self._nested: list[NDArray[np.float32]] = []

    def stream(self, candidate: int) -> bytearray:
        """The buffer for the words of one candidate."""
        while len(self._streams) <= candidate:
            self._streams.append(bytearray(self._size + 16))
        return self._streams[candidate]

    def marks(self, pairs: int) -> NDArray[np.bool_]:
        """A boolean array (``pairs``,) for the pairs of a block."""
        if self._marks is None:
            self._marks = np.empty((self._block + 1) // 2, np.bool_)
        return self._marks[:pairs]

    def nested_arrays(self, number: int, count: int) -> NDArray[np.float32]:
        """The further tile array ``number`` (``count``,), needed only for nested candidates."""
        while len(self._nested) <= number:
            self._nested.append(np.empty(len(self.deviates), np.float32))
        return self._nested[number][:count]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Pairs ``first`` to ``last`` of the ``pairs`` of a block of ``count`` values; pair i gives i and ``pairs`` + i."""

    first: int
    last: int
    pairs: int
    count: int

    @property
    def size(self) -> int:
        """The number of values of its pairs."""
        return self.last - self.first + min(self.pairs + self.last, self.count) - (self.pairs + self.first)

    def of(
        self, block: NDArray[np.floating], own: NDArray[np.float32]
    ) -> list[tuple[NDArray[np.floating], NDArray[np.float32]]]:
        """Views of the ``block`` (count,), each with the corresponding part of the tile's ``own`` values (size,)."""
        width = self.last - self.first
        if width == self.pairs:
            return [(block, own)]
        second = block[self.pairs + self.first : self.pairs + self.last]
        return [(block[self.first : self.last], own[:width]), (second, own[width:])]

    def places(self, chosen: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The indices of the values of ``chosen`` pairs: all first values, and those second values that exist."""
        seconds = chosen + self.pairs
        return chosen, seconds[seconds < self.count]


class _TileSums(NamedTuple):
    """The pairs that float32 cannot decide, and for each candidate the nearest grid points.

    ``points`` is empty if float32 cannot decide any pair.
    """

    doubtful: NDArray[np.intp]
    points: list[NDArray[np.float32]]


def spacing(stddev: float) -> float:
    """The spacing of the grid for noise of ``stddev``: the largest power of two not above stddev / 2^FINENESS."""
    return math.ldexp(1.0, math.frexp(stddev)[1] - 1 - FINENESS)


def increments(stddevs: Sequence[float]) -> list[float]:
    """The standard deviations of the noise added at each level, so that the sums have ``stddevs``; rounded up."""
    steps = [stddevs[0]]
    for less, more in pairwise(stddevs):
        steps.append(math.nextafter(math.sqrt((more - less) * (more + less)), math.inf))
    return steps


def suits_float32(stddevs: Sequence[float]) -> bool:
    """Whether sums for candidates of ``stddevs`` can be formed in float32."""
    return all(_LEAST <= spacing(stddev) <= _MOST for stddev in (*stddevs, *increments(stddevs)))


def release(
    values: NDArray[np.floating],
    stddevs: Sequence[float],
    outputs: Sequence[NDArray[np.floating]],
    bits: Sequence[BlockBits],
    scratch: BlockBuffers,
) -> None:
    """Write ``values`` (n,) plus noise into each of ``outputs`` (n,), rounded onto the grid of its standard deviation.

    Candidate j is rounded from the unrounded sum ``values`` + Z_1 + ... + Z_j. NaN and infinity become NaN or stay.
    ``outputs[0]`` may be ``values``; all have the same dtype, float32 or float64.
    """
    if not len(values):
        return
    if values.dtype == np.float32 and suits_float32(stddevs) and deviates.float32_is_fast():
        _release_float32(values, stddevs, outputs, bits, scratch)
    else:
        pairs = np.arange((len(values) + 1) // 2)
        words = [
            block_bits.leading(2 * len(pairs), scratch.zeros, scratch.stream(j)) for j, block_bits in enumerate(bits)
        ]
        _release_float64(values.astype(np.float64), pairs, stddevs, outputs, words, bits)


def _release_float32(
    values: NDArray[np.floating],
    stddevs: Sequence[float],
    outputs: Sequence[NDArray[np.floating]],
    bits: Sequence[BlockBits],
    scratch: BlockBuffers,
) -> None:
    """``release`` in float32, tile by tile, and in float64 where float32 cannot decide."""
    count, pairs = len(values), (len(values) + 1) // 2
    words = [block_bits.leading(2 * pairs, scratch.zeros, scratch.stream(j)) for j, block_bits in enumerate(bits)]
    width = max(1, len(scratch.deviates) // 2)
    doubtful, before = [], []
    for first in range(0, pairs, width):
        tile = _Tile(first, min(first + width, pairs), pairs, count)
        results = _tile_sums(tile, values, stddevs, words, scratch)
        doubtful.append(results.doubtful)
        before.append([values[places] for places in tile.places(results.doubtful)])  # outputs may overwrite them
        for out, points in zip(outputs, results.points, strict=False):
            for part, tile_points in tile.of(out, points):
                part[:] = tile_points
    chosen = np.concatenate(doubtful)
    if len(chosen):
        originals = np.concatenate([halves[half] for half in range(2) for halves in before])
        places = np.concatenate(_Tile(0, pairs, pairs, count).places(chosen))
        for out, exact in zip(outputs, refined(originals, chosen, stddevs, words, bits), strict=True):
            out[places] = exact


def _tile_sums(
    tile: _Tile,
    values: NDArray[np.floating],
    stddevs: Sequence[float],
    words: Sequence[NDArray[np.int32]],
    scratch: BlockBuffers,
) -> _TileSums:
    """The grid points of one tile, for every candidate."""
    size, only = tile.size, len(stddevs) == 1
    noise, fresh = scratch.deviates[:size], None if only else scratch.nested_arrays(0, size)
    error, doubtful = 0.0, []
    points: list[NDArray[np.float32]] = []
    for j, (stddev, increment) in enumerate(zip(stddevs, increments(stddevs), strict=True)):
        first, second = (words[j][start + tile.first : start + tile.last] for start in (0, tile.pairs))
        deviates_drawn = noise if j == 0 else fresh
        assert deviates_drawn is not None
        doubtful.append(deviates.float32_deviates(first, second, increment, scratch.pairs, deviates_drawn))
        error += FAST * increment
        if j:
            np.add(noise, deviates_drawn, out=noise)
            error += 2.0**-24 * REACH * sum(increments(stddevs)[: j + 1])
        # Each of several candidates keeps its points until the tile is done.
        nearest = scratch.points[:size] if only else scratch.nested_arrays(1 + j, size)
        near = _round(tile, values, noise, spacing(stddev), error, nearest, scratch)
        if near is None:
            return _TileSums(np.arange(tile.first, tile.last), [])
        doubtful.append(np.where(near < len(first), near, near - len(first)))
        points.append(nearest)
    joined = np.concatenate(doubtful)
    if not len(joined):  # usual for tensors of about a hundred numbers
        return _TileSums(joined, points)
    ordered = np.sort(joined)
    # Not np.unique, which imports masked arrays.
    kept = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=kept[1:])
    return _TileSums(ordered[kept] + tile.first, points)


def refined(
    values: NDArray[np.floating],
    chosen: NDArray[np.intp],
    stddevs: Sequence[float],
    words: Sequence[NDArray[np.int32]],
    bits: Sequence[BlockBits],
) -> list[NDArray[np.float32]]:
    """The releases of ``values``, those of the ``chosen`` pairs of a block, computed in float64."""
    padded = np.zeros(2 * len(chosen))
    padded[: len(values)] = values
    outputs = [np.empty(len(padded), np.float32) for _ in stddevs]
    half = len(words[0]) // 2
    leading = [np.concatenate([candidate_words[chosen], candidate_words[chosen + half]]) for candidate_words in words]
    _release_float64(padded, chosen, stddevs, outputs, leading, bits)
    return [exact[: len(values)] for exact in outputs]


def _round(
    tile: _Tile,
    values: NDArray[np.floating],
    noise: NDArray[np.float32],
    step: float,
    error: float,
    nearest: NDArray[np.float32],
    scratch: BlockBuffers,
) -> NDArray[np.intp] | None:
    """Fill ``nearest`` with the multiples of ``step`` nearest to values + noise; returns where that may be wrong.

    ``values`` are the block's, ``noise`` is the tile's and has an error of at most ``error``. None if values are not
    finite, or too large for float32.
    """
    sums, flags, multiples = scratch.sums[: len(noise)], scratch.flags[: len(noise)], None
    for (part, tile_sums), (_, drawn) in zip(tile.of(values, sums), tile.of(values, noise), strict=True):
        np.add(part, drawn, out=tile_sums)
    reach = largest(sums) / step
    if not reach < _FAR:
        return None
    if reach > _NEAR:
        # Split off multiples of the step, with which the sums would be too large to round accurately.
        for part, tile_sums in tile.of(values, sums):
            tile_sums[:] = part
        multiples = np.multiply(sums, np.float32(1 / step))
        np.rint(multiples, out=multiples)
        np.multiply(multiples, np.float32(step), out=multiples)
        np.subtract(sums, multiples, out=sums)
        np.add(sums, noise, out=sums)
        reach = largest(sums) / step
    tolerance = error / step * 1.001 + 2.0**-24 * reach
    if not tolerance < 2.0**-4:
        return None
    np.add(sums, np.float32(TO_STEPS * step), out=nearest)
    np.subtract(nearest, np.float32(TO_STEPS * step), out=nearest)
    np.subtract(sums, nearest, out=sums)
    np.abs(sums, out=sums)
    np.greater(sums, np.float32(0.5 - tolerance - 2.0**-24) * np.float32(step), out=flags)
    if multiples is not None:
        np.add(multiples, nearest, out=nearest)
    return flags.nonzero()[0]


def largest(values: NDArray[np.floating]) -> float:
    """The largest magnitude among ``values`` (n,); NaN if one is NaN."""
    return max(float(values.max()), -float(values.min())) if len(values) else 0.0


def _release_float64(
    values: NDArray[np.float64],
    pairs: NDArray[np.intp],
    stddevs: Sequence[float],
    outputs: Sequence[NDArray[np.floating]],
    words: Sequence[NDArray[np.int32]],
    bits: Sequence[BlockBits],
) -> None:
    """``release`` in float64: pair i of ``words`` gives the noise of values i and len(pairs) + i.

    ``pairs`` are the indices of the pairs in the block.
    """
    count = len(values)
    total = np.zeros(count)
    for j, (stddev, increment) in enumerate(zip(stddevs, increments(stddevs), strict=True)):
        first, second = words[j][: len(pairs)], words[j][len(pairs) :]
        deviates_drawn = deviates.float64_deviates(first, second, bits[j].following(pairs), bits[j].deep)
        total += increment * deviates_drawn.reshape(-1)[:count]
        outputs[j][:] = on_grid(values, total, spacing(stddev))


def on_grid(values: NDArray[np.float64], noise: NDArray[np.float64], step: float) -> NDArray[np.float64]:
    """The multiples of ``step`` nearest to ``values`` + ``noise``, without rounding the sums first."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = values / step
        multiples = np.rint(steps)
        remainder = np.where(np.isinf(steps), 0.0, steps - multiples)
        rounded = (multiples + np.rint(remainder + noise / step)) * step
    # A value whose quotient overflows is a multiple far beyond any noise. -0 would reveal the sign of the sum.
    return np.where(np.isinf(steps) & np.isfinite(values), values, rounded) + 0.0
