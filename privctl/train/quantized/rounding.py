"""What all quantizers share: scales of rows, rounding by random words, and a walk over a tensor that stays in cache.

Values are computed on in float32, float64 ones in float64, and given back in the precision they came in: where that is
half precision, levels with more digits than it holds are rounded to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from privctl.train.quantized.random_bits import ExampleBits, KeystreamBuffer, RandomBits, RoundingSite

#: Numbers processed at a time: few enough to stay in a cache, enough to outweigh the overhead of twenty calls.
BLOCK = 1 << 17

#: No scale is smaller: dividing by it keeps what is normal finite, and rows of zeros stay zeros.
SMALLEST = 2.0**-126

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_EXPONENT = {torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}

#: One or more tensors (r, 1) of a row's scale.
Scales = tuple[Tensor, ...]


class RoundingBuffers(NamedTuple):
    """Room for three tensors (r, d) of the precision that is computed in."""

    values: Tensor
    spacing: Tensor
    noise: Tensor


class Quantizer(Protocol):
    """A grid that adapts to each row's largest value, and a way to round to it."""

    @property
    def stochastic(self) -> bool:
        """Whether rounding takes random words, and its expectation is the value."""
        ...

    def scales(self, values: Tensor) -> Scales:
        """Of ``values`` (r, d), d > 0, each row's scale in the precision that is computed in."""
        ...

    def round_into(
        self, out: Tensor, values: Tensor, scales: Scales, words: Tensor | None, scratch: RoundingBuffers
    ) -> None:
        """Write ``values`` (r, d) rounded to their rows' grids into ``out``; ``words`` (r, d) int32 are used up.

        A value that is not finite makes its whole row NaN, so that such examples are detected.
        """
        ...


def computed_in(values: Tensor) -> torch.dtype:
    """The precision that ``values`` are rounded in."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def largest(values: Tensor) -> Tensor:
    """The largest magnitude (r, 1) of each row of (r, d); NaN where there is one."""
    magnitudes = torch.maximum(values.amax(1, keepdim=True), values.amin(1, keepdim=True).neg_())
    return magnitudes.to(computed_in(values))


def spacing(values: Tensor, out: Tensor, *, least: int, mantissa: int) -> Tensor:
    """The distance of neighbours on a floating-point grid at each value: 2^(max(floor(log2 |x|), least) - mantissa).

    For values that are not finite it is infinite.
    """
    torch.bitwise_and(values.view(_INTEGERS[values.dtype]), _EXPONENT[values.dtype], out=out.view(_INTEGERS[out.dtype]))
    out.clamp_(min=2.0**least)
    return out.mul_(2.0**-mantissa) if mantissa else out


def to_integers(values: Tensor, words: Tensor | None, noise: Tensor, *, bits: int) -> None:
    """Round in place, up or down by chance so that the expectation is the value, or without words to nearest-even.

    The uniform deviates are the odd multiples of 2^-(bits + 1) in (0, 1): x goes up with probability x - floor(x) to
    within 2^-(bits + 1), and exactly so where that is a multiple of 2^-bits. Being odd they leave an integer alone, and
    also what a division's rounding moved off it. ``bits`` at most 22 - log2 |x| has all sums exact in float32.
    """
    if words is None:
        values.round_()
        return
    noise.copy_(words.bitwise_and_((1 << bits + 1) - 1).bitwise_or_(1))
    values.add_(noise, alpha=2.0 ** -(bits + 1)).floor_()


def round_rows(quantizer: Quantizer, values: Tensor, words: Tensor | None = None) -> Tensor:
    """``values`` (r, d) on the grids of their rows; ``words`` (r, d) int32, uniform, are used up."""
    if not values.numel():
        return values.clone()
    out = torch.empty_like(values)
    scratch = RoundingBuffers(*torch.empty((3, *values.shape), dtype=computed_in(values), device=values.device))
    quantizer.round_into(out, values, quantizer.scales(values), words, scratch)
    return out


def rounded_examples(
    quantizer: Quantizer,
    values: Tensor,
    words: RandomBits,
    keys: Sequence[int],
    place: RoundingSite,
    room: RoundingMemory,
) -> Tensor:
    """``values`` (n, T, d), contiguous, with a scale for each of n T rows and the words of examples ``keys`` (n)."""
    if not values.numel():
        return values.clone()
    if values.is_cpu:
        return _by_blocks(quantizer, values, words, keys, place, room)
    return _at_once(quantizer, values, words, keys, place)


def _at_once(
    quantizer: Quantizer, values: Tensor, words: RandomBits, keys: Sequence[int], place: RoundingSite
) -> Tensor:
    """On the device of ``values``, with hashed words."""
    drawn = None
    if quantizer.stochastic:
        drawn = words.hash_words(keys, place, values[0].numel(), values.device).view(-1, values.shape[2])
    return round_rows(quantizer, values.flatten(0, 1), drawn).view_as(values)


def _by_blocks(
    quantizer: Quantizer,
    values: Tensor,
    words: RandomBits,
    keys: Sequence[int],
    place: RoundingSite,
    room: RoundingMemory,
) -> Tensor:
    """On a processor, with words from a cipher; the result does not depend on how large blocks are."""
    count, positions, size = values.shape
    rows = values.view(count * positions, size)
    out = torch.empty_like(rows)
    filler = ExampleBits(words, keys, place, positions * size, room.buffer()) if quantizer.stochastic else None
    at_once = max(1, BLOCK // size)
    for start in range(0, len(rows), at_once):
        selected = slice(start, min(start + at_once, len(rows)))
        scales = quantizer.scales(rows[selected])
        for begin in range(0, size, BLOCK):
            block = rows[selected, begin : begin + BLOCK]
            first = start * size + begin
            drawn = filler.next(first, first + block.numel()).view(block.shape) if filler else None
            quantizer.round_into(out[selected, begin : begin + BLOCK], block, scales, drawn, room.scratch(block))
    return out.view_as(values)


class RoundingMemory:
    """Working memory that is kept from one tensor to the next; not to be shared between threads."""

    def __init__(self) -> None:
        self._floats: dict[torch.dtype, Tensor] = {}
        self._buffer: KeystreamBuffer | None = None
        self._last: tuple[object, RoundingBuffers] | None = None

    def buffer(self) -> KeystreamBuffer:
        """Room for ``BLOCK`` words."""
        self._buffer = self._buffer or KeystreamBuffer(BLOCK)
        return self._buffer

    def scratch(self, block: Tensor) -> RoundingBuffers:
        """Room for computing on ``part``, of at most ``BLOCK`` numbers."""
        dtype = computed_in(block)
        shape_key = (dtype, block.shape)
        if self._last is None or self._last[0] != shape_key:
            if dtype not in self._floats:
                self._floats[dtype] = torch.empty(3, BLOCK, dtype=dtype)
            cut = self._floats[dtype][:, : block.numel()]
            self._last = shape_key, RoundingBuffers(*(tensor.view(block.shape) for tensor in cut))
        return self._last[1]
