"""Floating-point grids with few bits: LUQ-FP4 and the two kinds of FP8."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from privctl.domain.errors import CommandError
from privctl.train.quantized.rounding import SMALLEST, RoundingBuffers, Scales, largest, spacing, to_integers

#: Nonzero levels of 3 exponent bits. The published code of LUQ has 8, which do not fit into 3 bits together with zero,
#: and equation 11 as printed gives 5.
LUQ_LEVELS = 7

#: The bits that float32 leaves for the uniform deviates beside one significant bit.
_BITS = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Luq:
    """Logarithmic unbiased quantization (Chmiel et al. 2021, "LUQ", eqs. 10 to 16): a sign and an exponent.

    With M the largest magnitude of a row, the levels are 0 and +-M 2^-k for k from 0 to ``levels`` - 1. Between
    neighbouring levels lo and hi, of which lo may be 0 (stochastic underflow), rounding has expectation x and variance
    (hi - |x|)(|x| - lo).
    """

    levels: int = LUQ_LEVELS

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 64:
            raise CommandError(
                f"{self.levels} levels of logarithmic quantization; choose 1 to 64, such as {LUQ_LEVELS}"
            )

    @property
    def stochastic(self) -> bool:
        """See ``Quantizer``; always true."""
        return True

    def scales(self, values: Tensor) -> Scales:
        """The smallest nonzero level of each row."""
        return (largest(values).mul_(2.0 ** (1 - self.levels)).clamp_(min=SMALLEST),)

    def round_into(
        self, out: Tensor, values: Tensor, scales: Scales, words: Tensor | None, scratch: RoundingBuffers
    ) -> None:
        """See ``Quantizer``."""
        if words is None:
            raise ValueError("logarithmic unbiased quantization is stochastic; it needs words")
        torch.div(values, scales[0], out=scratch.values)
        _round_floating(scratch, words, least=0, mantissa=0)
        torch.mul(scratch.values, scales[0], out=out)


class Float8Kind(Enum):
    """(mantissa bits, least normal exponent, largest number, torch's dtype), from the OCP FP8 specification."""

    E4M3 = (3, -6, 448.0, torch.float8_e4m3fn)
    E5M2 = (2, -14, 57344.0, torch.float8_e5m2)

    @property
    def mantissa(self) -> int:
        """The number of stored mantissa bits."""
        return self.value[0]

    @property
    def least(self) -> int:
        """The exponent of the smallest normal number; subnormal numbers are spaced like those just above it."""
        return self.value[1]

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return self.value[2]

    @property
    def dtype(self) -> torch.dtype:
        """Torch's dtype."""
        return self.value[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8:
    """FP8 (Micikevicius et al. 2022) with a scale for each row; rounding is to nearest-even or stochastic and unbiased.

    The scale is the smallest power of two that brings a row's largest magnitude into the format's range: scaling then
    has no rounding error, and the grid is relatively as fine as with any other scale.
    """

    kind: Float8Kind
    stochastic: bool = False

    def scales(self, values: Tensor) -> Scales:
        """The power of two by which each row is divided."""
        return (_power_of_two(largest(values).div_(self.kind.largest)).clamp_(min=SMALLEST),)

    def round_into(
        self, out: Tensor, values: Tensor, scales: Scales, words: Tensor | None, scratch: RoundingBuffers
    ) -> None:
        """See ``Quantizer``."""
        torch.div(values, scales[0], out=scratch.values)
        _round_floating(scratch, words if self.stochastic else None, least=self.kind.least, mantissa=self.kind.mantissa)
        torch.mul(scratch.values, scales[0], out=out)


def _round_floating(scratch: RoundingBuffers, words: Tensor | None, *, least: int, mantissa: int) -> None:
    """Round ``scratch.values`` in place to numbers with ``mantissa`` bits and exponents of at least ``least``."""
    values = scratch.values
    distance = spacing(values, scratch.spacing, least=least, mantissa=mantissa)
    values.div_(distance)
    to_integers(values, words, scratch.noise, bits=_BITS - mantissa)
    values.mul_(distance)


def _power_of_two(values: Tensor) -> Tensor:
    """The smallest power of two not below each value; overwrites ``values``; infinity and NaN give infinity."""
    below = values.mul_(1 - torch.finfo(values.dtype).eps / 2)  # puts powers of two themselves below the power
    return spacing(below, torch.empty_like(below), least=-126, mantissa=0).mul_(2.0)
