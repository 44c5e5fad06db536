"""Normalization layers: the gradient of a scale is the sum over positions of gradient times normalized input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.training.perexample.terms import CACHED_BYTES, CHUNK_BYTES, Dense, Term, chunks
from privctl.training.perexample.use import Use


def layer_norm(module: nn.Module, use: Use) -> dict[str, Term]:
    """Torch's LayerNorm."""
    assert isinstance(module, nn.LayerNorm)
    shape = module.normalized_shape
    return _scale_and_shift(use, len(shape), lambda x: functional.layer_norm(x, shape, eps=module.eps))


def rms_norm(module: nn.Module, use: Use) -> dict[str, Term]:
    """Torch's RMSNorm."""
    assert isinstance(module, nn.RMSNorm)
    shape = module.normalized_shape
    return _scale_and_shift(use, len(shape), lambda x: functional.rms_norm(x, shape, eps=module.eps))


def group_norm(module: nn.Module, use: Use) -> dict[str, Term]:
    """Torch's GroupNorm: channels are the second dimension."""
    assert isinstance(module, nn.GroupNorm)
    inputs, gradients = _floats(use.first), _floats(use.gradient)
    found: dict[str, Term] = {}
    if "weight" in use.names:
        normalized = functional.group_norm(inputs, module.num_groups, eps=module.eps).mul_(gradients)
        found["weight"] = Dense(normalized.flatten(2).sum(2) if inputs.dim() > 2 else normalized)
    if "bias" in use.names:
        found["bias"] = Dense(gradients.flatten(2).sum(2) if inputs.dim() > 2 else gradients)
    return found


def _scale_and_shift(use: Use, trailing: int, normalize: Callable[[Tensor], Tensor]) -> dict[str, Term]:
    """Terms of weight and bias that have the shape of the input's last ``trailing`` dimensions."""
    inputs, gradients = use.first, use.gradient
    shape = inputs.shape[inputs.dim() - trailing :]
    weights, biases = [], []
    limit = CHUNK_BYTES if inputs.is_cuda else CACHED_BYTES
    for rows in chunks(len(inputs), 4 * inputs[0].numel(), limit):
        gradient = _floats(gradients[rows])
        if "weight" in use.names:
            normalized = normalize(_floats(inputs[rows])).mul_(gradient)
            weights.append(normalized.reshape(len(gradient), -1, *shape).sum(1))
        if "bias" in use.names:
            biases.append(gradient.reshape(len(gradient), -1, *shape).sum(1))
    pairs = (("weight", weights), ("bias", biases))
    return {name: Dense(torch.cat(parts)) for name, parts in pairs if parts}


def _floats(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
