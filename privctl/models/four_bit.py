"""Frozen bases of adapters in 4 bits, by bitsandbytes (Dettmers et al. 2023, QLoRA: NF4 with double quantization).

The weights are loaded and compared with their file before they are quantized, so the digest covers what is quantized.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

from privctl.domain.errors import CommandError, InputError

_FORMAT = "nf4"
_ROUNDS_ON_CPU = "support_avx512bf16_for_cpu"
_QUANTIZED_FLAG = "is_loaded_in_4bit"


def in_four_bits(network: Any, device: torch.device) -> None:
    """Quantize the linear layers in the body of a transformers ``network``, in place, and move it to ``device``.

    Heads are not quantized. All parameters are frozen. Raises CommandError without bitsandbytes, and InputError for a
    network without linear layers.
    """
    library = _library()
    layers = list(_layers_to_quantize(network))
    if not layers:
        raise InputError(f"a {network.config.model_type} has no linear layers to hold in 4 bits; remove --base-bits")
    network.unquantized = sorted({name for name, module in network.named_modules() if _is_linear(module)} - set(layers))
    network.requires_grad_(False)
    for name in layers:
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, _quantized_layer(library, network.get_submodule(name), device))
    network.to(device)
    setattr(network, _QUANTIZED_FLAG, True)


def settings_for_transformers(network: Any) -> BitsAndBytesConfig | None:
    """The settings with which transformers loads ``network`` as quantized by ``in_four_bits``; None if it was not."""
    if not hasattr(network, "unquantized"):
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=_FORMAT,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
        llm_int8_skip_modules=network.unquantized,
    )


def in_full_precision(network: nn.Module) -> None:
    """Make quantized layers compute in the format of their input on CPUs too, where some round to bfloat16 first."""
    for module in network.modules():
        if hasattr(module, _ROUNDS_ON_CPU):
            setattr(module, _ROUNDS_ON_CPU, False)


def _library() -> Any:
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError:
        raise CommandError(
            "--base-bits needs bitsandbytes, which is not installed; pip install 'privctl[qlora]'"
        ) from None


def _is_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, Conv1D)


def _layers_to_quantize(network: Any) -> Iterator[str]:
    """Names of the linear layers to quantize: those in the body whose weight no other module shares."""
    body = getattr(network, network.base_model_prefix, network)
    inside = {id(module) for module in body.modules()}
    uses: dict[int, int] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for name, module in network.named_modules():
        if _is_linear(module) and id(module) in inside and uses[id(module.weight)] == 1:
            yield name


def _quantized_layer(library: Any, layer: Any, device: torch.device) -> Any:
    weight = layer.weight.detach()
    outputs_first = weight.T if isinstance(layer, Conv1D) else weight
    outputs, inputs = outputs_first.shape
    quantized = library.nn.Linear4bit(
        inputs, outputs, bias=layer.bias is not None, compute_dtype=torch.float32, compress_statistics=True,
        quant_type=_FORMAT, device="meta",
    )  # fmt: skip
    quantized.weight = library.nn.Params4bit(
        outputs_first.contiguous(), requires_grad=False, quant_type=_FORMAT, compress_statistics=True, module=quantized
    ).to(device)
    quantized.bias = layer.bias
    in_full_precision(quantized)
    return quantized
