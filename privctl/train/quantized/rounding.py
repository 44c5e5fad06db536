"""What all quantizers share: row scales, stochastic rounding, and cache-sized blocks.

Computation is in float32, or in float64 for float64 values, and results have the precision of the input: in half
precision, levels with more digits are rounded to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from privctl.train.quantized.random_bits import ExampleBits, KeystreamBuffer, RandomBits, RoundingSite

#: Values processed at a time: few enough to stay in cache, enough to amortize the overhead of twenty calls.
BLOCK = 1 << 17

#: The smallest scale: dividing normal numbers by it stays finite, and rows of zeros stay zero.
SMALLEST = 2.0**-126

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_EXPONENT = {torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}

#: One or more tensors (r, 1) that define the grid of each row.
Scales = tuple[Tensor, ...]


class RoundingBuffers(NamedTuple):
    """Three scratch tensors (r, d) in the working precision."""

    values: Tensor
    spacing: Tensor
    noise: Tensor


class Quantizer(Protocol):
    """A grid that adapts to each row's range, and a way to round to it."""

    @property
    def stochastic(self) -> bool:
        """Whether rounding uses random words and is unbiased."""
        ...

    def scales(self, values: Tensor) -> Scales:
        """The scale of each row of ``values`` (r, d), d > 0, in the working precision."""
        ...

    def round_into(
        self, out: Tensor, values: Tensor, scales: Scales, words: Tensor | None, scratch: RoundingBuffers
    ) -> None:
        """Round ``values`` (r, d) to their rows' grids into ``out``; ``words`` (r, d) int32 may be overwritten.

        A value that is not finite makes its whole row NaN, so that such examples are detected.
        """
        ...


def working_dtype(values: Tensor) -> torch.dtype:
    """The working precision for ``values``."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def largest(values: Tensor) -> Tensor:
    """The largest magnitude (r, 1) of each row of ``values`` (r, d); NaN if the row has a NaN."""
    magnitudes = torch.maximum(values.amax(1, keepdim=True), values.amin(1, keepdim=True).neg_())
    return magnitudes.to(working_dtype(values))


def spacing(values: Tensor, out: Tensor, *, least: int, mantissa: int) -> Tensor:
    """The spacing of a floating-point grid at each value, 2^(max(floor(log2 |x|), least) - mantissa), into ``out``.

    It is infinite for values that are not finite.
    """
    torch.bitwise_and(values.view(_INTEGERS[values.dtype]), _EXPONENT[values.dtype], out=out.view(_INTEGERS[out.dtype]))
    out.clamp_(min=2.0**least)
    return out.mul_(2.0**-mantissa) if mantissa else out


def to_integers(values: Tensor, words: Tensor | None, noise: Tensor, *, bits: int) -> None:
    """Round in place, stochastically and unbiased or, with ``words`` None, to nearest-even.

    The uniform deviates are the odd multiples of 2^-(bits + 1) in (0, 1): x is rounded up with probability
    x - floor(x) to within 2^-(bits + 1), and exactly if that is a multiple of 2^-bits. As they are odd, integers are
    never changed, nor are values that a division's rounding error moved off an integer. If ``bits`` is at most
    22 - log2 |x|, all sums are exact in float32.
    """
    if words is None:
        values.round_()
        return
    noise.copy_(words.bitwise_and_((1 << bits + 1) - 1).bitwise_or_(1))
    values.add_(noise, alpha=2.0 ** -(bits + 1)).floor_()


def round_rows(quantizer: Quantizer, values: Tensor, words: Tensor | None = None) -> Tensor:
    """Round ``values`` (r, d) to the grids of their rows; ``words`` (r, d), uniform int32, may be overwritten."""
    if not values.numel():
        return values.clone()
    out = torch.empty_like(values)
    scratch = RoundingBuffers(*torch.empty((3, *values.shape), dtype=working_dtype(values), device=values.device))
    quantizer.round_into(out, values, quantizer.scales(values), words, scratch)
    return out


def rounded_examples(
    quantizer: Quantizer,
    values: Tensor,
    words: RandomBits,
    keys: Sequence[int],
    place: RoundingSite,
    memory: RoundingMemory,
) -> Tensor:
    """Round contiguous ``values`` (n, T, d), with a scale for each of n T rows and the words of examples ``keys``."""
    if not values.numel():
        return values.clone()
    if values.is_cpu:
        return _by_blocks(quantizer, values, words, keys, place, memory)
    return _at_once(quantizer, values, words, keys, place)


def _at_once(
    quantizer: Quantizer, values: Tensor, words: RandomBits, keys: Sequence[int], place: RoundingSite
) -> Tensor:
    """Round everything at once on the device of ``values``, with hashed words."""
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
    memory: RoundingMemory,
) -> Tensor:
    """Round in blocks on a CPU, with words from a cipher; the result does not depend on the size of blocks."""
    count, positions, size = values.shape
    rows = values.view(count * positions, size)
    out = torch.empty_like(rows)
    filler = ExampleBits(words, keys, place, positions * size, memory.buffer()) if quantizer.stochastic else None
    at_once = max(1, BLOCK // size)
    for start in range(0, len(rows), at_once):
        selected = slice(start, min(start + at_once, len(rows)))
        scales = quantizer.scales(rows[selected])
        for begin in range(0, size, BLOCK):
            block = rows[selected, begin : begin + BLOCK]
            first = start * size + begin
            drawn = filler.next(first, first + block.numel()).view(block.shape) if filler else None
            quantizer.round_into(out[selected, begin : begin + BLOCK], block, scales, drawn, memory.scratch(block))
    return out.view_as(values)


class RoundingMemory:
    """Working memory that is reused from one tensor to the next; not thread-safe."""

    def __init__(self) -> None:
        self._floats: dict[torch.dtype, Tensor] = {}
        self._buffer: KeystreamBuffer | None = None
        self._last: tuple[object, RoundingBuffers] | None = None

    def buffer(self) -> KeystreamBuffer:
        """A buffer for ``BLOCK`` words."""
        self._buffer = self._buffer or KeystreamBuffer(BLOCK)
        return self._buffer

    def scratch(self, block: Tensor) -> RoundingBuffers:
        """Scratch tensors for ``block``, which has at most ``BLOCK`` values."""
        dtype = working_dtype(block)
        shape_key = (dtype, block.shape)
        if self._last is None or self._last[0] != shape_key:
            if dtype not in self._floats:
                self._floats[dtype] = torch.empty(3, BLOCK, dtype=dtype)
            cut = self._floats[dtype][:, : block.numel()]
            self._last = shape_key, RoundingBuffers(*(tensor.view(block.shape) for tensor in cut))
        return self._last[1]
