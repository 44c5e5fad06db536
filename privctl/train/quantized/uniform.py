"""Uniform 4-bit grids with unbiased stochastic rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privctl.train.quantized.rounding import SMALLEST, RoundingBuffers, Scales, largest, to_integers, working_dtype

#: The bits that float32 leaves for the uniform deviates beside codes below 16.
_BITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIntegers:
    """INT4 as hardware multiplies it: codes -7 to 7 times M/7, with M the row's largest magnitude. Zero is a level."""

    @property
    def stochastic(self) -> bool:
        """See ``Quantizer``; always true."""
        return True

    def scales(self, values: Tensor) -> Scales:
        """The spacing of each row's levels."""
        return (largest(values).div_(_CODES).clamp_(min=SMALLEST),)

    def round_into(
        self, out: Tensor, values: Tensor, scales: Scales, words: Tensor | None, scratch: RoundingBuffers
    ) -> None:
        """See ``Quantizer``."""
        if words is None:
            raise ValueError("INT4 is rounded stochastically; it needs words")
        torch.div(values, scales[0], out=scratch.values)
        to_integers(scratch.values, words, scratch.noise, bits=_BITS)
        scratch.values.clamp_(-_CODES, _CODES)
        torch.mul(scratch.values, scales[0], out=out)


_CODES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLevels:
    """All 16 levels of 4 bits, evenly spaced from the row's smallest to its largest value. Zero need not be a level.

    Finer than ``SignedIntegers`` by 15/14 for values symmetric about zero, and more than twice as fine for values of
    one sign, as after a ReLU; in exchange, products need an offset besides the codes.
    """

    @property
    def stochastic(self) -> bool:
        """See ``Quantizer``; always true."""
        return True

    def scales(self, values: Tensor) -> Scales:
        """The smallest value, and the spacing of each row's levels."""
        low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
        low, high = low.to(working_dtype(values)), high.to(working_dtype(values))
        return low, high.sub_(low).div_(_STEPS).clamp_(min=SMALLEST)

    def round_into(
        self, out: Tensor, values: Tensor, scales: Scales, words: Tensor | None, scratch: RoundingBuffers
    ) -> None:
        """See ``Quantizer``."""
        if words is None:
            raise ValueError("uniform levels are rounded to stochastically; they need words")
        low, step = scales
        torch.sub(values, low, out=scratch.values).div_(step)
        to_integers(scratch.values, words, scratch.noise, bits=_BITS)
        scratch.values.clamp_(0, _STEPS)
        torch.mul(scratch.values, step, out=scratch.values)
        torch.add(scratch.values, low, out=out)


_STEPS = 15
