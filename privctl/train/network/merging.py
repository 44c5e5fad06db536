"""Merging low-rank adapters into the weights of their layers, with a check of each merged layer.

The outputs of a whole network reveal a badly merged layer only if its rounding errors are small. Each layer is
therefore checked against the error bound of its own sums: the weights W + s B A are rounded to float32, so on inputs x
they give x (W + s B A)^T up to (r + 4) units in the last place of |x| (|W| + s |B| |A|)^T, where r is the rank (Higham
2002, Accuracy and Stability of Numerical Algorithms, section 3.5). Both sides are computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from privctl.domain.errors import InputError
from privctl.models.adapters import PREFIX
from privctl.train.clipping.products import full_precision

#: The number of random inputs; each reveals a wrong weight unless its errors cancel.
_INPUTS = 4
_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """The outputs of a layer with its adapter for the inputs of ``_inputs``, and the ``allowed`` error of each."""

    outputs: Tensor
    allowed: Tensor


def merge(joined: Any) -> nn.Module:
    """The plain network with each adapter merged into its layer's weights.

    Raises InputError if a merged layer does not compute what it did with its adapter.
    """
    expected = {name.removeprefix(PREFIX): _response(layer) for name, layer in _adapted(joined)}
    with full_precision(next(joined.parameters()).device):
        plain: nn.Module = joined.merge_and_unload()
    for name, response in expected.items():
        weight = _matrix(plain.get_submodule(name))
        outputs = _inputs(weight) @ weight.T
        if outputs.shape != response.outputs.shape or ((outputs - response.outputs).abs() > response.allowed).any():
            raise InputError(
                f"the merged layer {name} does not compute what it did with its adapter; nothing was written, so check "
                "the installed peft, or release the adapter alone with --save-adapter"
            )
    return plain


def _adapted(joined: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, layer in joined.named_modules():
        if len(getattr(layer, "lora_A", ())):
            yield name, layer


def _response(layer: Any) -> _Response:
    """The layer's outputs, applying the adapter's two factors in turn, as in training; peft merges their product."""
    weight = _matrix(layer.get_base_layer())
    inputs = _inputs(weight)
    outputs, reach, rank = inputs @ weight.T, inputs.abs() @ weight.abs().T, 0
    for name in layer.active_adapters:
        first, second = _matrix(layer.lora_A[name]), _matrix(layer.lora_B[name])
        scale = layer.scaling[name]
        outputs = outputs + scale * (inputs @ first.T @ second.T)
        reach = reach + abs(scale) * (inputs.abs() @ first.abs().T @ second.abs().T)
        rank += len(first)
    return _Response(outputs=outputs, allowed=(rank + 4) * torch.finfo(torch.float32).eps * reach)


def _matrix(layer: Any) -> Tensor:
    """The weights of a linear layer as (outputs, inputs), in float64 on the CPU."""
    weight: Tensor = layer.weight.detach().cpu().double()
    return weight.T if isinstance(layer, Conv1D) else weight


def _inputs(weight: Tensor) -> Tensor:
    drawn = torch.Generator().manual_seed(_SEED)
    return torch.randn(_INPUTS, weight.shape[1], generator=drawn, dtype=torch.float64)
