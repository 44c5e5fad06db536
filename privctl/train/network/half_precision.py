"""What a training computes and stores in bfloat16: by default, passes on a GPU that supports it.

Trained weights, the optimizer's moments, per-example norms, clipped sums and noise are always float32; see
``clipping.products``. Frozen weights are stored in bfloat16 if that is lossless.
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
    """Whether the network's passes are in bfloat16: as requested, otherwise on a GPU that supports it.

    A CPU rarely gains from it. Raises CommandError for a device that is not available.
    """
    if request.bf16 is not None:
        return request.bf16
    if choose_device(request.device).type != "cuda" or request.method.needs_float32(request):
        return False
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


class _Product(torch.autograd.Function):
    """A linear layer in the precision of its inputs that saves no wider copy of its frozen weight (p, d)."""

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
    """Store frozen weights of linear layers in bfloat16 if all their values are exact in it; returns these weights.

    That is the case for a base whose file stores bfloat16. If the values are not in memory, ``exact`` names such
    parameters. Under autocast the layers multiply by the same values without a cast in each pass; otherwise they
    compute in the precision of their inputs. No value changes. Weights that another module also uses, such as an
    embedding, are left in float32.
    """
    users: dict[int, int] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    converted = []
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
            converted.append(weight)
    return converted


def _forward(layer: Any, plain: Any, inputs: Tensor) -> Tensor:
    if torch.is_autocast_enabled(inputs.device.type) or inputs.dtype == layer.weight.dtype:
        result: Tensor = plain(inputs)
        return result
    weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
    return _PRODUCT(inputs, weight, layer.bias)


def widen(network: nn.Module) -> None:
    """Convert the weights that ``hold_base`` stored in bfloat16 back to float32, without changing a value."""
    for weight in network.parameters():
        if weight.dtype == torch.bfloat16:
            weight.data = weight.data.float()
