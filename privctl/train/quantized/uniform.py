"""Evenly spaced grids of 4 bits, rounded to by chance without bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privctl.train.quantized.rounding import SMALLEST, RoundingBuffers, Scales, computed_in, largest, to_integers

#: Codes below 16 leave float32 so many bits for the uniform deviates.
_BITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIntegers:
    """INT4 as hardware multiplies it: codes -7 to 7, spaced M/7 with M the row's largest magnitude. Zero is a level."""

    @property
    def stochastic(self) -> bool:
        """Always."""
        return True

    def scales(self, values: Tensor) -> Scales:
        """The distance of neighbours."""
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
    """All 16 levels that 4 bits have, even from the row's smallest to its largest value. Zero need not be a level.

    Finer than ``SignedIntegers`` by 15/14 where values lie evenly about zero, and more than twice as fine where all
    have one sign, as behind a ReLU; a product then takes an offset beside its codes.
    """

    @property
    def stochastic(self) -> bool:
        """Always."""
        return True

    def scales(self, values: Tensor) -> Scales:
        """The smallest value, and the distance of neighbours."""
        low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
        low, high = low.to(computed_in(values)), high.to(computed_in(values))
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
