"""Integer tensors of a checkpoint: distinguishing index buffers, masks and counters from quantized weights.

Recognised buffers are counters, constants, consecutive positions, masks that depend only on the distance between two
positions, and index tables with a known name and plausible values. Everything else may hold quantized weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from privctl.storage.header import INTEGER_DTYPES, TensorInfo
from privctl.storage.json_text import parse_json
from privctl.storage.reader import Checkpoint, SafetensorsFile, read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Index tables that models store besides their weights, by the last part of their names.
INDEX_TABLES = frozenset({
    "position_ids", "positional_ids", "token_type_ids", "buffered_token_type_ids", "relative_position_index",
    "relative_position_bucket", "attention_bias_idxs", "num_batches_tracked",
})  # fmt: skip
#: Tensors of quantized layers, by the last part of their names: GPTQ, AWQ, bitsandbytes, compressed-tensors, torchao,
#: Quanto, AQLM, MXFP4, HQQ; and usual names of weights, which no buffer has.
_OF_QUANTIZED = re.compile(
    r"q?weights?|qzeros|kernel|scales?|zeros?|zero_points?|g_idx|qdata|int_data|SCB|weight_format|(nested_)?absmax"
    r"|codes|codebooks?|blocks|W_q|.*quant.*|.*_(packed|shape|scales?|zero_point|g_idx|qdata|blocks|absmax|int[48])",
)
#: Names of the scales that accompany quantized integers.
_SCALES = re.compile(r"scales?|.*_scales?|zero_point|.*_zero_point|qzeros|zeros|SCB|(nested_)?absmax|quant_map|W_q")

_VIEWS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("u1"),
    **{f"{sign}{8 * width}": np.dtype(f"<{sign.lower()}{width}") for sign in "IU" for width in (1, 2, 4, 8)},
}
#: Index tables have at most this many bytes, and more bits per entry than quantized weights.
_LARGEST_TABLE = 256 << 20
_TABLE_DTYPES = frozenset({"I32", "I64", "U32", "U64"})
#: A table's entries may exceed its own length by this much (padding, special tokens).
_BEYOND = 16


@dataclass(frozen=True, slots=True)
class Integers:
    """What tells whether integer tensors are quantized: the ``method`` in config.json, and layers with scales."""

    method: str
    scaled: frozenset[str]

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Self:
        """Read tensor names and config.json. Raises InputError if config.json is not JSON."""
        tensors = [tensor for _, tensor in checkpoint.tensors()]
        if not any(tensor.dtype in INTEGER_DTYPES for tensor in tensors):
            return cls("", frozenset())
        return cls(_method(checkpoint), _scaled_layers(tensor.name for tensor in tensors))

    def fault(self, file: SafetensorsFile, tensor: TensorInfo) -> str | None:
        """Why the integer ``tensor`` of ``file`` may hold weights; None if it is a recognised buffer."""
        layer, last = _layer_and_name(tensor.name)
        if last in INDEX_TABLES and _is_table(file, tensor):
            return None
        if self.method:
            return f"config.json says that the weights are quantized ({self.method})"
        if _OF_QUANTIZED.fullmatch(last):
            return "has the name of a part of a quantized layer"
        if layer in self.scaled:
            return "stands beside the scales of a quantized layer"
        if _is_buffer(file, tensor):
            return None
        return "is no index table, mask or counter that is known here, so it may hold quantized weights"


def _method(checkpoint: Checkpoint) -> str:
    """The quantization method named in config.json; empty if there is none."""
    path = checkpoint.folder / "config.json"
    data = parse_json(read_text(path), str(path)) if path.is_file() else None
    quantization = data.get("quantization_config") if isinstance(data, dict) else None
    if not quantization:
        return ""
    return (
        str(quantization.get("quant_method") or "of a kind not named")
        if isinstance(quantization, dict)
        else "of some kind"
    )


def _scaled_layers(names: Iterable[str]) -> frozenset[str]:
    pairs = map(_layer_and_name, names)
    return frozenset(layer for layer, last in pairs if layer and _SCALES.fullmatch(last))


def _layer_and_name(name: str) -> tuple[str, str]:
    layer, _, last = name.rpartition(".")
    return layer, last


def _values(file: SafetensorsFile, tensor: TensorInfo) -> NDArray[Any]:
    return np.frombuffer(file.read(tensor), _VIEWS[tensor.dtype]).reshape(tensor.shape)


def _is_table(file: SafetensorsFile, tensor: TensorInfo) -> bool:
    """Whether its values are plausible indices: not negative, and not much larger than its number of elements."""
    if tensor.elements <= 1:
        return True
    if tensor.dtype not in _TABLE_DTYPES or tensor.size > _LARGEST_TABLE:
        return False
    values = _values(file, tensor)
    return bool(values.min() >= 0 and values.max() < tensor.elements + _BEYOND)


def _is_buffer(file: SafetensorsFile, tensor: TensorInfo) -> bool:
    """Whether its values are those of a buffer that does not depend on data: constant, consecutive or a mask."""
    if tensor.elements <= 1:
        return True
    if tensor.size > _LARGEST_TABLE:
        return False
    values = _values(file, tensor)
    first = values.reshape(-1)[0]
    if (values == first).all():
        return True
    if tensor.dtype != "BOOL" and (values == first + np.arange(values.shape[-1])).all():
        return True
    return _is_mask(values)


def _is_mask(values: NDArray[Any]) -> bool:
    """Whether the values are a 0/1 mask that depends on the distance between positions only: causal, local or both."""
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.max() > 1 or values.min() < 0:
        return False
    return bool((values[..., 1:, 1:] == values[..., :-1, :-1]).all())
