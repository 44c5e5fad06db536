"""Layers whose products have quantized factors: inputs, weights and output gradients.

A scale never depends on two examples: otherwise one example would change another's gradient, and leaving one out would
move the clipped sum by more than the clip norm. A linear layer has a scale for each position, so that padding, whose
amount depends on the longest example of the batch, has no effect either. A convolution has a scale for each example.
A weight has one for the whole tensor, which depends only on earlier releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from privctl.domain.errors import CommandError, InputError
from privctl.train.clipping.rules import WHOLE
from privctl.train.clipping.shards import is_shard
from privctl.train.quantized import hardware
from privctl.train.quantized.formats import NumberFormat
from privctl.train.quantized.random_bits import RandomBits, Role, RoundingSite
from privctl.train.quantized.rounding import Quantizer, RoundingMemory, rounded_examples

#: Returns a rounded copy.
Rounding = Callable[[Tensor], Tensor]


class _StraightThrough(torch.autograd.Function):
    """Rounding with the straight-through gradient estimator (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounding: Rounding) -> Tensor:
        return rounding(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Backward(torch.autograd.Function):
    """The identity, whose backward pass rounds the gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounding: Rounding) -> Tensor:
        ctx.rounding = rounding
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rounding(gradient), None


#: Rounds ``values``; their gradient is the output's gradient.
round_forward: Callable[[Tensor, Rounding], Tensor] = _StraightThrough.apply

#: Returns ``values`` unchanged; their gradient is rounded.
round_backward: Callable[[Tensor, Rounding], Tensor] = _Backward.apply


def _linear(module: Any, inputs: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(inputs, weight, module.bias)


def _linear_transposed(module: Any, inputs: Tensor, weight: Tensor) -> Tensor:
    flat = torch.addmm(module.bias, inputs.reshape(-1, inputs.shape[-1]), weight)
    return flat.view(*inputs.shape[:-1], weight.shape[1])


def _convolution(module: Any, inputs: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = module._conv_forward(inputs, weight, module.bias)
    return product


#: A product applies only to classes with the ``forward`` that it was written for.
PRODUCTS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.Linear: _linear,
    Conv1D: _linear_transposed,
    nn.Conv2d: _convolution,
}


@dataclass(slots=True, kw_only=True, eq=False)
class _Layer:
    """A layer that can be quantized; ``calls`` counts its calls in the current pass."""

    name: str
    number: int
    module: nn.Module
    product: Callable[[Any, Tensor, Tensor], Tensor]
    calls: int = 0
    weight: Tensor | None = None  # rounded, for the current step

    @property
    def by_position(self) -> bool:
        """Whether each position, and not just each example, has its own scale."""
        return not isinstance(self.module, nn.Conv2d)


@dataclass(slots=True, kw_only=True, eq=False)
class _Pass:
    """The state of one pass: the keys of its examples, and whether it is still running."""

    keys: tuple[int, ...]
    words: RandomBits
    open: bool = True


@dataclass(slots=True, kw_only=True, eq=False)
class QuantizedLayers:
    """The layers of ``network`` that can be quantized, and those of them that currently are.

    Select layers with ``choose``, start each step with ``begin``, and run forward and backward passes inside
    ``active``. Only there does a chosen layer multiply rounded inputs by a rounded weight, and is its output gradient
    rounded before the gradients of weight, bias and input are computed from it. Inputs and weights have
    straight-through gradients. ``PerExample`` gets the rounded factors, whichever of the two was created first; let it
    ``verify`` the first batch outside ``active``.

    Layers are all Linear, transformers' Conv1D and Conv2d modules, trained or not. An output layer tied to an embedding
    is included: its product is rounded, not the look-up. All randomness is derived from ``seed``, the step and the
    examples' keys; see ``RandomBits``.
    """

    network: nn.Module
    format: NumberFormat
    seed: bytes
    _layers: dict[str, _Layer] = field(init=False)
    _chosen: list[_Layer] = field(init=False, default_factory=list)
    _words: RandomBits | None = field(init=False, default=None)
    _pass: _Pass | None = field(init=False, default=None)
    _memory: RoundingMemory = field(init=False, default_factory=RoundingMemory)
    _shared: bool = field(init=False)

    def __post_init__(self) -> None:
        self._shared = any(map(is_shard, self.network.parameters()))
        quantizable = list(_quantizable(self.network))
        self._layers = {
            name: _Layer(name=name, number=number, module=module, product=product)
            for number, (name, module, product) in enumerate(quantizable)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The layers that can be quantized, in the network's order."""
        return tuple(self._layers)

    @property
    def chosen(self) -> frozenset[str]:
        """The layers that are currently quantized."""
        return frozenset(layer.name for layer in self._chosen)

    def choose(self, names: frozenset[str]) -> None:
        """Quantize exactly these layers from now on. Raises CommandError for a name that is not in ``names``."""
        unknown = sorted(names - self._layers.keys())
        if unknown:
            raise CommandError(
                f"{unknown[0]!r} is no layer that can be quantized; those are Linear, Conv1D and Conv2d, such as "
                f"{next(iter(self._layers), 'none here')}"
            )
        self._chosen = [layer for name, layer in self._layers.items() if name in names]
        self._forget_weights()

    def begin(self, step: int) -> None:
        """Start a step with new random words; each weight is rounded once per step, when first needed.

        The same ``step`` gives the same words. Call this after every change of weights.
        """
        self._words = RandomBits(self.seed, step)
        self._forget_weights()

    @contextmanager
    def active(self, keys: Sequence[int]) -> Iterator[None]:
        """Inside, the chosen layers are quantized; the rows of the batch are the examples with these ``keys``.

        A key (below 2^64) identifies an example's content, as in the random draws of tasks; an example that occurs
        twice in a step is rounded the same way both times. Run one forward and one backward pass. Raises InputError if
        a layer's rows are not the examples, and RuntimeError before the first ``begin``.
        """
        if self._words is None:
            raise RuntimeError("call begin before any examples pass")
        if self._pass is not None:
            raise RuntimeError("other examples are passing; leave their block first")
        self._pass = current = _Pass(keys=tuple(keys), words=self._words)
        try:
            with ExitStack() as stack:
                for layer in self._chosen:
                    layer.calls = 0
                    self._install(layer, current, stack)
                yield
        finally:
            current.open = False
            self._pass = None

    def _install(self, layer: _Layer, current: _Pass, stack: ExitStack) -> None:
        """Hook ``layer`` until ``stack`` is closed.

        Hooks run in the order of registration: the hook on outputs runs after the recorder's, so in the backward pass
        it runs first.
        """
        module = layer.module
        before = module.register_forward_pre_hook(partial(self._round_input, layer, current), with_kwargs=True)
        stack.callback(before.remove)
        # Set on the instance, as the rules for gradients are selected by the class's ``forward``.
        module.__dict__["forward"] = partial(self._product, layer, current)
        stack.callback(module.__dict__.pop, "forward")
        after = module.register_forward_hook(partial(self._round_output_gradient, layer, current))
        stack.callback(after.remove)

    def _round_input(
        self, layer: _Layer, current: _Pass, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """A pre-hook that rounds the input, so that later hooks get the rounded input."""
        call = _call(layer)
        inputs = arguments[0] if arguments else next(iter(keywords.values()))
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind) and inputs.dtype == torch.float32:
            # The product would cast anyway; casting first rounds the levels only once.
            inputs = inputs.to(torch.get_autocast_dtype(kind))
        rounding = partial(
            self._round_values, layer, current, self.format.inputs, RoundingSite(layer.number, call, Role.INPUT)
        )
        return (round_forward(inputs, rounding),), {}

    def _product(self, layer: _Layer, current: _Pass, inputs: Tensor) -> Tensor:
        """Replaces the module's ``forward``."""
        weight: Tensor = layer.module.weight  # type: ignore[assignment]
        rounded = round_forward(weight, lambda w: self._weight(layer, current, w))
        if layer.product is _linear and hardware.is_supported(self.format, inputs, weight):
            return hardware.linear(inputs, rounded, layer.module.bias)  # type: ignore[arg-type]
        return layer.product(layer.module, inputs, rounded)

    def _round_output_gradient(
        self, layer: _Layer, current: _Pass, module: nn.Module, arguments: Any, output: Tensor
    ) -> Tensor:
        """A hook that rounds the output's gradient in the backward pass."""
        place = RoundingSite(layer.number, _current(layer), Role.GRADIENT)
        return round_backward(output, partial(self._round_values, layer, current, self.format.gradients, place))

    def _weight(self, layer: _Layer, current: _Pass, weight: Tensor) -> Tensor:
        used = layer.weight
        if used is None:
            flat = weight.detach().reshape(1, 1, -1)
            place = RoundingSite(layer.number, 0, Role.WEIGHT)
            rounded = rounded_examples(self.format.weights, flat, current.words, [0], place, self._memory)
            used = rounded.view(weight.shape)
            # A process has no memory for all weights of a sharded network; each pass rounds them the same way.
            layer.weight = None if self._shared else used
        return used.detach()  # a new tensor, as autograd modifies the one it is given

    def _round_values(
        self, layer: _Layer, current: _Pass, quantizer: Quantizer, place: RoundingSite, values: Tensor
    ) -> Tensor:
        if not current.open:
            raise RuntimeError(f"layer {layer.name!r} was quantized forward; run the backward pass in the same block")
        shaped = _by_example(layer, values, len(current.keys))
        return rounded_examples(quantizer, shaped, current.words, current.keys, place, self._memory).view(values.shape)

    def _forget_weights(self) -> None:
        for layer in self._layers.values():
            layer.weight = None


def _quantizable(network: nn.Module) -> Iterator[tuple[str, nn.Module, Callable[[Any, Tensor, Tensor], Tensor]]]:
    inside: tuple[str, ...] = ()
    for name, module in network.named_modules():
        if name.startswith(inside):
            continue
        if isinstance(module, WHOLE):
            inside += (f"{name}.",)  # its children are never called
        if hasattr(module, "original_module") and hasattr(module, "modules_to_save"):
            inside += (f"{name}.original_module",)  # an adapter calls its own copy instead
        for kind, product in PRODUCTS.items():
            if type(module).forward is kind.forward and "forward" not in module.__dict__:
                yield name, module, product


def _by_example(layer: _Layer, values: Tensor, count: int) -> Tensor:
    """Reshape a linear layer's (n, ..., d) or (n T, d) to (n, T, d), a convolution's (n, c, h, w) to (n, 1, c h w)."""
    if values.dim() > 1 and len(values) == count and not layer.by_position:
        return values.reshape(count, 1, -1).contiguous()
    if values.dim() > 1 and count and len(values) % count == 0 and layer.by_position:
        return values.reshape(count, -1, values.shape[-1]).contiguous()
    fault = (
        f"layer {layer.name!r} has rows of shape {tuple(values.shape)} for {count} examples, so that theirs cannot be "
        "told apart; remove it from the layers to be quantized"
    )
    # A rule that reruns a module may try it with other rows; a RuntimeError makes it try another way.
    raise RuntimeError(fault) if _is_in_backward() else InputError(fault)


def _call(layer: _Layer) -> int:
    """The index of the current call; a call repeated in the backward pass keeps its index."""
    if not _is_in_backward():
        layer.calls += 1
    elif layer.calls > 1:
        raise InputError(
            f"layer {layer.name!r} is called {layer.calls} times and computed again for the backward pass, which "
            "cannot tell the calls apart; switch gradient checkpointing off, or remove it from the quantized layers"
        )
    return _current(layer)


def _current(layer: _Layer) -> int:
    return layer.calls - 1


def _is_in_backward() -> bool:
    """Whether autograd is running; a forward pass is then a rerun, by gradient checkpointing or by the engine."""
    return torch._C._current_graph_task_id() != -1
