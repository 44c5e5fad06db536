"""The number formats by name, and the quantizers of each for a layer's three operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from privctl.train.quantized.floating import LUQ_LEVELS, Float8, Float8Kind, Luq
from privctl.train.quantized.rounding import Quantizer
from privctl.train.quantized.uniform import SignedIntegers, UniformLevels
from privctl.train.settings.choices import FormatName


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """The quantizers of a layer's inputs, weights and output gradients."""

    name: FormatName
    inputs: Quantizer
    weights: Quantizer
    gradients: Quantizer


def luq_fp4(levels: int = LUQ_LEVELS) -> NumberFormat:
    """LUQ-FP4 with ``levels`` nonzero magnitudes; raises CommandError for an invalid number."""
    return _single_format(FormatName.LUQ_FP4, Luq(levels=levels))


def _single_format(name: FormatName, quantizer: Quantizer) -> NumberFormat:
    return NumberFormat(name=name, inputs=quantizer, weights=quantizer, gradients=quantizer)


def _fp8(name: FormatName, *, stochastic: bool) -> NumberFormat:
    """E4M3 for inputs and weights, E5M2 with its wider range for gradients (Micikevicius et al. 2022, section 4)."""
    forward = Float8(kind=Float8Kind.E4M3, stochastic=stochastic)
    backward = Float8(kind=Float8Kind.E5M2, stochastic=stochastic)
    return NumberFormat(name=name, inputs=forward, weights=forward, gradients=backward)


FORMATS: Mapping[FormatName, NumberFormat] = MappingProxyType(
    {
        quantized_format.name: quantized_format
        for quantized_format in (
            luq_fp4(),
            _fp8(FormatName.FP8, stochastic=False),
            _fp8(FormatName.FP8_STOCHASTIC, stochastic=True),
            _single_format(FormatName.INT4, SignedIntegers()),
            _single_format(FormatName.UNIFORM4, UniformLevels()),
        )
    }
)
