"""Layers that compute in few bits, as DPQuant quantizes them: simulated, without bias, and one example at a time."""

from privctl.training.quantized.formats import FORMATS, Format, FormatName, luq_fp4
from privctl.training.quantized.layers import QuantizedLayers

__all__ = ["FORMATS", "Format", "FormatName", "QuantizedLayers", "luq_fp4"]
