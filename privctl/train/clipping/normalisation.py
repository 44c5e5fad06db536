"""Normalization layers: the gradient of a scale is the sum over positions of gradient times normalized input."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from privctl.train.clipping.group_norm_code import group_norm_sums, suits_groups
from privctl.train.clipping.norm_code import norm_sums, suits_code
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.terms import (
    CACHED_BYTES,
    Dense,
    GradientTerm,
    at_least_float32,
    by_positions,
    chunk_bytes,
    chunks,
)
from privctl.train.clipping.use import ModuleCall

_FIRST, _LAST = "channels_first", "channels_last"


def layer_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's LayerNorm."""
    assert isinstance(module, nn.LayerNorm)
    shape = module.normalized_shape
    if len(shape) == 1 and (terms := _by_code(use, module.eps, centred=True)):
        return terms
    return _scale_and_shift(use, len(shape), lambda x: functional.layer_norm(x, shape, eps=module.eps))


def has_data_format(module: nn.Module) -> bool:
    """Whether ``module`` is a subclass of LayerNorm that says which dimension has the channels, as in ConvNeXt."""
    return isinstance(module, nn.LayerNorm) and getattr(module, "data_format", None) in (_FIRST, _LAST)


def channel_layer_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """A LayerNorm of the channels, which are the second dimension or the last; see ``has_data_format``."""
    if module.data_format == _LAST:
        return layer_norm(module, use)
    inputs, gradients = use.first.movedim(1, -1), use.gradient.movedim(1, -1)
    return layer_norm(module, replace(use, arguments=(inputs,), keywords={}, gradients=(gradients,)))


def rms_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's RMSNorm."""
    assert isinstance(module, nn.RMSNorm)
    shape = module.normalized_shape
    return _scale_and_shift(use, len(shape), lambda x: functional.rms_norm(x, shape, eps=module.eps))


def is_scaled_rms_norm(module: nn.Module) -> bool:
    """Whether ``module`` is RMSNorm scaled by its only parameter, or by 1 plus that parameter.

    Models define their own RMSNorm classes, so this is tested: by the module's gradient for random inputs.
    """
    parameters = dict(module.named_parameters())
    epsilon = _epsilon(module)
    if list(parameters) != ["weight"] or parameters["weight"].dim() != 1 or epsilon is None:
        return False
    if len(inspect.signature(module.forward).parameters) != 1:  # such as an optional gate
        return False
    weight = parameters["weight"].detach()
    draws = torch.randn(4, 2, 3, len(weight), generator=torch.Generator().manual_seed(0))
    # Of different magnitudes; the smallest show where epsilon is added.
    sizes = torch.tensor([1.0, 10.0, 0.1, math.sqrt(epsilon)])[:, None, None, None]
    inputs = (draws * sizes).to(weight).requires_grad_()
    gradients = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1)).to(weight)
    value = torch.rand(len(weight), generator=torch.Generator().manual_seed(2)).to(weight).requires_grad_()
    try:
        with torch.enable_grad(), full_precision(weight.device):
            output = functional_call(module, {"weight": value}, (inputs,))
            (gradient,) = torch.autograd.grad(output, value, gradients, allow_unused=True)
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    if not isinstance(output, Tensor) or output.shape != inputs.shape or gradient is None:
        return False
    products = functional.rms_norm(inputs.detach(), weight.shape, eps=epsilon) * gradients
    return bool((gradient - products.flatten(0, -2).sum(0)).norm() <= 1e-5 * products.norm())


def scaled_rms_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """A model's own RMSNorm for which ``is_scaled_rms_norm`` holds."""
    epsilon = _epsilon(module)
    assert epsilon is not None  # is_scaled_rms_norm was asked
    if terms := _by_code(use, epsilon, centred=False):
        return terms
    return _scale_and_shift(use, 1, lambda x: functional.rms_norm(x, x.shape[-1:], eps=epsilon))


def _epsilon(module: nn.Module) -> float | None:
    value = next((getattr(module, name) for name in ("variance_epsilon", "eps") if hasattr(module, name)), None)
    return value if isinstance(value, float) and value > 0 else None


def group_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's GroupNorm, whose channels are the second dimension."""
    assert isinstance(module, nn.GroupNorm)
    if terms := _by_group(use, module.num_groups, module.eps):
        return terms
    return _by_channel(use, lambda x: functional.group_norm(x, module.num_groups, eps=module.eps))


def instance_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's InstanceNorm of any dimension, with each example's own statistics or, in evaluation, running ones."""
    assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
    mean, variance, uses_batch = (
        module.running_mean,
        module.running_var,
        module.training or not module.track_running_stats,
    )
    if uses_batch and (terms := _by_group(use, use.first.shape[1], module.eps)):
        return terms
    return _by_channel(
        use,
        lambda x: functional.instance_norm(x, mean, variance, use_input_stats=uses_batch, momentum=0.0, eps=module.eps),
    )


def batch_norm(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's BatchNorm of any dimension in evaluation mode, which scales and shifts each channel of each example."""
    assert isinstance(module, nn.modules.batchnorm._BatchNorm)
    mean, variance = module.running_mean, module.running_var
    return _by_channel(use, lambda x: functional.batch_norm(x, mean, variance, eps=module.eps))


def _by_channel(use: ModuleCall, normalize: Callable[[Tensor], Tensor]) -> dict[str, GradientTerm]:
    """Terms of weight and bias with one entry per channel, the input's second dimension."""
    inputs, gradients = use.first, use.gradient
    weights, biases = [], []
    for rows in _cuts(inputs):
        gradient = at_least_float32(gradients[rows])
        if "weight" in use.names:
            normalized = normalize(at_least_float32(inputs[rows])).mul_(gradient)
            weights.append(normalized.reshape(*inputs[rows].shape[:2], -1).sum(2))
        if "bias" in use.names:
            biases.append(gradient.reshape(*inputs[rows].shape[:2], -1).sum(2))
    return _join(weights, biases)


def _by_code(use: ModuleCall, epsilon: float, *, centred: bool) -> dict[str, GradientTerm] | None:
    """The terms of a norm of the last dimension by machine code, or None if that does not suit."""
    inputs, gradients = by_positions(use.first), by_positions(use.gradient)
    if not suits_code(inputs, gradients):
        return None
    return _terms(use, norm_sums(inputs, gradients, epsilon=epsilon, centred=centred))


def _by_group(use: ModuleCall, groups: int, epsilon: float) -> dict[str, GradientTerm] | None:
    """The terms of a norm of ``groups`` of channels by machine code, or None if that does not suit."""
    if use.first.dim() < 3 or not suits_groups(use.first, use.gradient):
        return None
    return _terms(use, group_norm_sums(use.first, use.gradient, groups, epsilon))


def _terms(use: ModuleCall, sums: tuple[Tensor, Tensor]) -> dict[str, GradientTerm]:
    return {name: Dense(each) for name, each in zip(("weight", "bias"), sums, strict=True) if name in use.names}


def _scale_and_shift(use: ModuleCall, trailing: int, normalize: Callable[[Tensor], Tensor]) -> dict[str, GradientTerm]:
    """Terms of weight and bias with the shape of the input's last ``trailing`` dimensions."""
    inputs, gradients = use.first, use.gradient
    shape = inputs.shape[inputs.dim() - trailing :]
    weights, biases = [], []
    for rows in _cuts(inputs):
        gradient = at_least_float32(gradients[rows])
        if "weight" in use.names:
            normalized = normalize(at_least_float32(inputs[rows])).mul_(gradient)
            weights.append(normalized.reshape(len(gradient), -1, *shape).sum(1))
        if "bias" in use.names:
            biases.append(gradient.reshape(len(gradient), -1, *shape).sum(1))
    return _join(weights, biases)


def _cuts(inputs: Tensor) -> Iterator[slice]:
    return chunks(len(inputs), 4 * inputs[0].numel(), chunk_bytes(inputs) if inputs.is_cuda else CACHED_BYTES)


def _join(weights: list[Tensor], biases: list[Tensor]) -> dict[str, GradientTerm]:
    pairs = (("weight", weights), ("bias", biases))
    return {name: Dense(torch.cat(parts)) for name, parts in pairs if parts}
