"""Layers that compute in few bits, as DPQuant quantizes them: simulated, without bias, and one example at a time."""

from privctl.train.quantized.formats import FORMATS, NumberFormat, luq_fp4
from privctl.train.quantized.layers import QuantizedLayers
from privctl.train.settings.choices import FormatName

__all__ = ["FORMATS", "FormatName", "NumberFormat", "QuantizedLayers", "luq_fp4"]
