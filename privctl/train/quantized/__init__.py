"""Layers that compute in few bits, as DPQuant quantizes them: simulated, without bias, and one example at a time."""

from privctl.train.choices import FormatName
from privctl.train.quantized.formats import FORMATS, NumberFormat, luq_fp4
from privctl.train.quantized.layers import QuantizedLayers

__all__ = ["FORMATS", "FormatName", "NumberFormat", "QuantizedLayers", "luq_fp4"]
