"""Replaces modules, for passes without gradients on a CPU, by fewer operations with the same result up to rounding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.models.activations import Kernel, fusible_activations, own_kernel, replaced_forwards
from privctl.models.fused.gate import gate_, suits_gate
from privctl.models.fused.lookup import looked_up, suits_lookup
from privctl.models.fused.norm import layer_norm, rms_norm, suits_layer_norm, suits_rms_norm
from privctl.models.fused.rotary import rotated, rotated_by_torch, suits_rotary

#: Values for the test of a norm: rows whose mean square is far above, near and below epsilon.
_SIZES = (1.0, 30.0, 1e-3)
#: How far a norm may be from the module's own, in machine epsilons of the number: each rounds a few times.
_EPSILONS = 4
#: What code raises that takes other arguments, or holds other parts, than what it is compared with.
_ANOTHER_INTERFACE = (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
#: The name of the function that turns queries and keys, in transformers' modules, and of what marks a fused one.
_TURN, _FUSED = "apply_rotary_pos_emb", "is_fused_rotary"


@contextmanager
def fast_inference(network: nn.Module) -> Iterator[None]:
    """Within the block, ``network`` runs faster forward passes; its state dict is unchanged.

    Activations use torch's kernels (see ``fused_activations``). On a CPU, activations in bfloat16 are looked up, layer
    norms in bfloat16 take less time, RMS norms read their input once, or at least form no squares of it, gated layers
    form their product in place, layers in bfloat16 do not copy their bias, a convolution of patches that do not overlap
    is one product of matrices, and rotary position embeddings are one operation, which any other network of the same
    Python module has too.
    """
    kernels = dict(fusible_activations(network))
    if not _is_on_cpu(network):
        with replaced_forwards(kernels.items()):
            yield
        return
    kernels |= {module: kernel for module in network.modules() if (kernel := own_kernel(module)) is not None}
    activations = ((module, _activation(kernel)) for module, kernel in kernels.items())
    with replaced_forwards(activations), replaced_forwards(_faster(network, kernels)), _fused_rotary(network):
        yield


def _is_on_cpu(network: nn.Module) -> bool:
    weight = next(network.parameters(), None)
    return weight is not None and weight.device.type == "cpu"


def _activation(kernel: Kernel) -> Kernel:
    def forward(x: Tensor) -> Tensor:
        return looked_up(kernel, x) if suits_lookup(x) else kernel(x)

    return forward


def _faster(network: nn.Module, kernels: Mapping[nn.Module, Kernel]) -> Iterator[tuple[nn.Module, Kernel]]:
    """The modules of ``network`` that can run faster, each with what it runs then; ``kernels`` of its activations."""
    for module in network.modules():
        if "forward" in vars(module):
            continue
        if type(module) is nn.Conv2d and _is_of_patches(module):
            yield module, _of_patches(module)
        elif type(module) is nn.Linear and _has_bias_in_half_precision(module):
            yield module, _with_bias(module)
        elif type(module) is nn.LayerNorm and module.weight is not None and module.bias is not None:
            yield module, _layer_norm(module)
        elif type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")) and _is_rms_norm(module):
            yield module, _rms_norm(module)
        elif type(module).__name__.endswith("MLP"):
            act: Any = getattr(module, "act_fn", None)
            if (kernel := kernels.get(act)) is not None and _is_gated(module, kernel):
                yield module, _gated(module, kernel)


def _is_of_patches(module: nn.Conv2d) -> bool:
    """Whether each input is read by one output position at most."""
    return (
        module.kernel_size == module.stride
        and module.groups == 1
        and module.padding in ((0, 0), "valid")
        and module.dilation == (1, 1)
    )


def _of_patches(module: nn.Conv2d) -> Kernel:
    height, width = module.kernel_size

    def forward(images: Tensor) -> Tensor:
        """The module's output (n, p, h, w), as a view of (n, h, w, p)."""
        if images.dim() != 4 or images.shape[2] < height or images.shape[3] < width:
            return nn.Conv2d.forward(module, images)  # which refuses images that are too small
        rows, columns = images.shape[2] // height, images.shape[3] // width
        cut = images[:, :, : rows * height, : columns * width]
        patches = cut.reshape(*images.shape[:2], rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
        return functional.linear(patches.flatten(3), module.weight.flatten(1), module.bias).permute(0, 3, 1, 2)

    return forward


def _has_bias_in_half_precision(module: nn.Linear) -> bool:
    """Whether oneDNN can multiply by the weight in bfloat16 and add the bias in one operation."""
    if module.bias is None or {module.weight.dtype, module.bias.dtype} != {torch.bfloat16}:
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _with_bias(module: nn.Linear) -> Kernel:
    """Torch's own operation first copies the bias into every row of the result."""

    def forward(x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.dtype != torch.bfloat16 or x.numel() == 0:
            return nn.Linear.forward(module, x)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, module.weight, module.bias, "none", [], "")
        return output

    return forward


def _layer_norm(module: nn.LayerNorm) -> Kernel:
    def forward(x: Tensor) -> Tensor:
        if suits_layer_norm(x, module.weight, module.bias):
            return layer_norm(x, module.weight, module.bias, module.eps)
        return nn.LayerNorm.forward(module, x)

    return forward


def _rms_norm(module: nn.Module) -> Kernel:
    """Normalize x to x / sqrt(mean(x^2) + epsilon), round that to the format of x, and multiply by the weight."""
    epsilon = _epsilon(module)
    assert epsilon is not None  # _is_rms_norm was asked

    def forward(hidden_states: Tensor) -> Tensor:
        weight = module.get_parameter("weight")
        if suits_rms_norm(hidden_states, weight):
            return rms_norm(hidden_states, weight, epsilon)
        x = hidden_states.to(torch.float32, copy=True)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = size.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        normalized = x.mul_(scale).to(hidden_states.dtype)
        return normalized.mul_(weight) if weight.dtype == normalized.dtype else normalized * weight

    return forward


def _is_rms_norm(module: nn.Module) -> bool:
    """Whether ``module`` computes what ``_rms_norm`` does, by its output for random inputs and a random weight."""
    parameters = dict(module.named_parameters())
    if list(parameters) != ["weight"] or parameters["weight"].dim() != 1 or not isinstance(_epsilon(module), float):
        return False
    weight = parameters["weight"]
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(len(_SIZES), len(weight), generator=generator) * torch.tensor(_SIZES)[:, None]
        x, value = x.to(weight.dtype), torch.rand(len(weight), generator=generator).add_(0.5).to(weight.dtype)
        probe = copy(module)  # whose hooks are not called
        vars(probe)["_parameters"] = {"weight": nn.Parameter(value, requires_grad=False)}
        try:
            own, other = probe.forward(x), _rms_norm(probe)(x)
        except _ANOTHER_INTERFACE:
            return False
    if not isinstance(own, Tensor) or own.dtype != other.dtype or own.shape != other.shape:
        return False
    allowed = _EPSILONS * torch.finfo(weight.dtype).eps * own.double().abs()
    return bool(((own.double() - other.double()).abs() <= allowed).all())


def _gated(module: Any, kernel: Kernel) -> Kernel:
    """The layer "down" of the activation of the layer "gate" times the layer "up"."""

    def forward(x: Tensor) -> Tensor:
        gates, values = module.gate_proj(x), module.up_proj(x)
        fused = suits_gate(kernel, gates, values)
        product = gate_(kernel, gates, values) if fused else kernel(gates) * values
        output: Tensor = module.down_proj(product)
        return output

    return forward


def _is_gated(module: nn.Module, kernel: Kernel) -> bool:
    """Whether ``module`` computes what ``_gated`` does, by its output for random inputs, in layers without hooks."""
    layers = dict(module.named_children())
    names = ("gate_proj", "up_proj", "down_proj")
    if any(type(layers.get(name)) is not nn.Linear or layers[name]._forward_hooks for name in names):
        return False
    weight = layers["gate_proj"].get_parameter("weight")
    with torch.inference_mode():
        x = torch.randn(4, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        try:
            own, other = type(module).forward(module, x), _gated(module, kernel)(x)
        except _ANOTHER_INTERFACE:
            return False
    return isinstance(own, Tensor) and bool(torch.equal(own, other))


@contextmanager
def _fused_rotary(network: nn.Module) -> Iterator[None]:
    """Within the block, the functions that turn queries and keys in the Python modules of ``network`` are fused."""
    places = {type(module).__module__: sys.modules.get(type(module).__module__) for module in network.modules()}
    changed: list[tuple[Any, Callable[..., Any]]] = []
    try:
        for place in places.values():
            turn = getattr(place, _TURN, None)
            if turn is not None and not hasattr(turn, _FUSED) and _turns(turn):
                changed.append((place, turn))
                setattr(place, _TURN, _fused(turn))
        yield
    finally:
        for place, turn in changed:
            setattr(place, _TURN, turn)


def _fused(turn: Callable[..., Any]) -> Callable[..., Any]:
    def apply(queries: Tensor, keys: Tensor, cosines: Tensor, sines: Tensor, *more: Any, **named: Any) -> Any:
        if not more and not named and all(suits_rotary(each, cosines, sines) for each in (queries, keys)):
            return rotated(queries, cosines, sines), rotated(keys, cosines, sines)
        return turn(queries, keys, cosines, sines, *more, **named)

    setattr(apply, _FUSED, True)
    return apply


def _turns(turn: Callable[..., Any]) -> bool:
    """Whether ``turn`` computes what ``rotated_by_torch`` does, by its output for random inputs."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn((2, heads, 3, 8), generator=generator) for heads in (4, 2))
    turns = torch.randn((2, 2, 3, 8), generator=generator)
    try:
        with torch.inference_mode():
            found = turn(queries, keys, *turns)
    except _ANOTHER_INTERFACE:
        return False
    expected = tuple(rotated_by_torch(each, *turns) for each in (queries, keys))
    return isinstance(found, tuple) and all(map(torch.equal, found, expected)) and len(found) == len(expected)


def _epsilon(module: nn.Module) -> float | None:
    """The number that is added to the mean square."""
    return next((getattr(module, name) for name in ("variance_epsilon", "eps") if hasattr(module, name)), None)
