"""Replaces activations that transformers composes of several operations by torch's fused kernel of the same formula.

Composed, GELU takes up to eight operations. Each reads and writes every element, and most save a tensor for the
backward pass; the kernel reads its input, writes its output, and saves only the input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

Kernel = Callable[[Tensor], Tensor]

#: Tolerances relative to max(1, |x|): in float64, where some classes truncate constants to 8 digits, and in machine
#: epsilons for the other formats.
_FLOAT64_TOLERANCE, _EPSILONS = 1e-8, 4


def _quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), as the SiLU of 1.702 x."""
    return functional.silu(1.702 * x) * (1 / 1.702)


_gelu_tanh: Kernel = partial(functional.gelu, approximate="tanh")
#: By a module's ``approximate``.
_GELU: dict[str, Kernel] = {"none": functional.gelu, "tanh": _gelu_tanh}
_OWN_SILU = ("transformers.activations", "SiLUActivation")

#: (module, class) -> kernel; by name, so that nothing needs to be imported.
KERNELS: dict[tuple[str, str], Kernel] = {
    ("transformers.activations", "NewGELUActivation"): _gelu_tanh,
    ("transformers.activations", "FastGELUActivation"): _gelu_tanh,
    ("transformers.activations", "AccurateGELUActivation"): _gelu_tanh,
    ("transformers.activations", "GELUTanh"): _gelu_tanh,
    ("transformers.activations", "GELUActivation"): functional.gelu,
    ("transformers.activations", "QuickGELUActivation"): _quick_gelu,
    ("transformers.models.bloom.modeling_bloom", "BloomGelu"): _gelu_tanh,
}
#: Classes whose instances call a kernel, kept as ``act``, or compose it.
_EITHER = (("transformers.activations", "GELUActivation"), ("transformers.activations", "GELUTanh"))


def fusible_activations(network: nn.Module) -> tuple[tuple[nn.Module, Kernel], ...]:
    """The modules of ``network`` that torch's kernels can replace, each with its kernel.

    These are of exactly the classes in ``KERNELS``, and the kernel agrees with ``forward`` in values and gradients up
    to rounding, which is computed on a few numbers.
    """
    weight = next(network.parameters(), torch.empty(0))
    with_kernels = ((module, _kernel_of(module)) for module in network.modules())
    return tuple((m, kernel) for m, kernel in with_kernels if kernel is not None and _agree(m.forward, kernel, weight))


def own_kernel(module: nn.Module) -> Kernel | None:
    """The kernel of SiLU or GELU that ``module`` calls and nothing else; for each formula always the same object."""
    if "forward" in vars(module):
        return None
    if type(module) is nn.GELU:
        return _GELU.get(module.approximate)
    name = (type(module).__module__, type(module).__qualname__)
    if name == _OWN_SILU or (type(module) is nn.SiLU and not module.inplace):
        return functional.silu
    act = getattr(module, "act", None) if name in _EITHER else None
    if isinstance(act, partial) and act.func is functional.gelu and not act.args:
        return _GELU.get(act.keywords.get("approximate", "")) if len(act.keywords) == 1 else None
    return functional.gelu if act is functional.gelu else None


@contextmanager
def fused_activations(network: nn.Module) -> Iterator[None]:
    """Within the block, composed activations of ``network`` use torch's kernels.

    The state dict is unchanged. A copy of the network made within the block keeps the kernels.
    """
    with use_kernels(fusible_activations(network)):
        yield


@contextmanager
def use_kernels(activations: Iterable[tuple[nn.Module, Kernel]]) -> Iterator[None]:
    """Within the block, each of ``activations``, found by ``fusible_activations``, uses its kernel.

    A module whose ``forward`` was patched since then keeps it.
    """
    with replaced_forwards((module, kernel) for module, kernel in activations if _kernel_of(module) is kernel):
        yield


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Kernel]]) -> Iterator[None]:
    """Within the block, each module computes what stands beside it; none of them had a ``forward`` of its own."""
    changed: list[nn.Module] = []
    try:
        for module, forward in forwards:
            module.forward = forward
            changed.append(module)
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)  # another thread may have removed it already


def _kernel_of(module: nn.Module) -> Kernel | None:
    """The kernel for ``module``; None if it has none, uses it already, or has a patched ``forward``."""
    kind = type(module)
    kernel = KERNELS.get((kind.__module__, kind.__qualname__))
    if kernel is None or getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind:
        return None
    act = getattr(module, "act", None)  # in classes with both implementations: the module's own method, or the kernel
    composed = act is None or getattr(act, "__self__", None) is module
    return kernel if composed and "forward" not in vars(module) else None


def _agree(own: Kernel, kernel: Kernel, weight: Tensor) -> bool:
    """Whether values and gradients agree up to rounding, tested on a few numbers on the device of ``weight``."""
    device = torch.device("cpu") if weight.is_meta else weight.device
    kinds = dict.fromkeys((torch.float64, torch.float32, torch.bfloat16, weight.dtype))
    return all(_computes_the_same(own, kernel, kind, device) for kind in kinds if kind.is_floating_point)


def _computes_the_same(own: Kernel, kernel: Kernel, kind: torch.dtype, device: torch.device) -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.linspace(-12, 12, 97, dtype=torch.float64, device=device).to(kind).requires_grad_()
        results = [_with_gradient(function, x) for function in (own, kernel)]
    share = _FLOAT64_TOLERANCE if kind == torch.float64 else _EPSILONS * torch.finfo(kind).eps
    allowed = share * x.detach().double().abs().clamp(min=1)
    return all(
        one.dtype == other.dtype and bool(((one.double() - other.double()).abs() <= allowed).all())
        for one, other in zip(*results, strict=True)
    )


def _with_gradient(function: Kernel, x: Tensor) -> tuple[Tensor, Tensor]:
    values = function(x)
    (gradient,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), gradient
