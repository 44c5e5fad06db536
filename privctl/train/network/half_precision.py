"""What a training computes in bfloat16, and what it keeps in it: by default the passes of a GPU that has it.

Trained weights, the optimizer's moments, per-example norms, clipped sums and noise are float32 always: see
``clipping.products``. Frozen weights are kept in bfloat16 where that loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from privctl.models.language import choose_device
from privctl.train.settings.request import RetrainRequest


def in_bfloat16(request: RetrainRequest) -> bool:
    """Whether the network's passes are in bfloat16: as asked, else on a GPU that computes in it.

    A processor rarely gains by it. Raises CommandError for a device that is not there.
    """
    if request.bf16 is not None:
        return request.bf16
    if choose_device(request.device).type != "cuda" or request.method.needs_float32(request):
        return False
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


class _Product(torch.autograd.Function):
    """A linear layer in the precision of its inputs, which keeps no wider copy of its frozen weight (p, d)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return nn.functional.linear(inputs, weight.to(inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return gradient @ weight.to(gradient.dtype), None, None


_PRODUCT: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _Product.apply


def hold_base(network: nn.Module, exact: Collection[str] | None = None) -> list[nn.Parameter]:
    """Keep frozen weights of linear layers in bfloat16 where all their numbers are bfloat16 already; returns these.

    That is so in a base whose file stores bfloat16. Where the numbers are elsewhere, ``exact`` names such parameters.
    Autocast multiplies by the same numbers without a cast a pass; elsewhere the layers compute in the precision of
    their inputs. No number changes. Weights that another module uses as well, as an embedding, stay.
    """
    users: dict[int, int] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    held = []
    for path, layer in network.named_modules():
        if type(layer) not in (nn.Linear, Conv1D):
            continue
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, nn.Parameter)
        frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
        if not frozen or users[id(weight)] > 1 or weight.dtype != torch.float32:
            continue
        half = weight.detach().bfloat16()
        if torch.equal(half.float(), weight.detach()) if exact is None else f"{path}.weight" in exact:
            weight.data = half
            layer.forward = partial(_forward, layer, layer.forward)
            held.append(weight)
    return held


def _forward(layer: Any, plain: Any, inputs: Tensor) -> Tensor:
    if torch.is_autocast_enabled(inputs.device.type) or inputs.dtype == layer.weight.dtype:
        result: Tensor = plain(inputs)
        return result
    weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
    return _PRODUCT(inputs, weight, layer.bias)


def widen(network: nn.Module) -> None:
    """Back to float32, with the numbers that ``hold_base`` was given."""
    for weight in network.parameters():
        if weight.dtype == torch.bfloat16:
            weight.data = weight.data.float()
