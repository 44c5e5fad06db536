"""Layers that compute in few bits, as in DPQuant: simulated, with unbiased rounding of each example by itself."""

from privctl.train.quantized.formats import FORMATS, NumberFormat, luq_fp4
from privctl.train.quantized.layers import QuantizedLayers
from privctl.train.settings.choices import FormatName

__all__ = ["FORMATS", "FormatName", "NumberFormat", "QuantizedLayers", "luq_fp4"]
