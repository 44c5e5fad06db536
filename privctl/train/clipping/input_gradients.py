"""Input gradients of convolutions on a CPU, formed for a few examples at a time.

Torch's kernel reorders inputs, output gradients and result, which takes up to twice the memory of the result. In a
backward pass that keeps tensors for the sum, this is the peak of memory use. Convolutions that read the same tensor (a
block's first, and that of its shortcut) add to one result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from privctl.train.clipping.terms import chunks

#: Bytes per thread of what the kernel is called with at once, including its result. A batch of up to twice as much is
#: not split, as each call has a cost.
PART_BYTES = 3 << 20

Receive = Callable[[tuple[Tensor | None, ...], tuple[Tensor, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConvolutionOptions:
    """The geometry of a convolution, with one entry per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class _InputTerm(NamedTuple):
    """What a convolution adds to the gradient of its input."""

    gradient: Tensor  # of its output
    weight: Tensor
    layer: _ConvolutionOptions

    def add_to(self, total: Tensor, inputs: Tensor, rows: slice, *, fresh: bool) -> None:
        """Add to the ``rows`` of ``total``; ``fresh`` means that they are uninitialized and are overwritten."""
        part, gradient = total[rows], self.gradient[rows]
        if self._is_pointwise():
            pixels = (slice(None), slice(None), *(slice(None, None, step) for step in self.layer.stride))
            if fresh and math.prod(self.layer.stride) > 1:
                part.zero_()
            values = torch.matmul(self.weight.flatten(1).mT, gradient.flatten(2))
            values = values.view(*values.shape[:2], *gradient.shape[2:])
            part[pixels].copy_(values) if fresh else part[pixels].add_(values)
            return
        g = self.layer
        values = torch.ops.aten.convolution_backward(
            gradient, inputs[rows], self.weight, None, g.stride, g.padding, g.dilation, False, (0,) * len(g.stride),
            g.groups, (True, False, False),
        )[0]  # fmt: skip
        part.copy_(values) if fresh else part.add_(values)

    def _is_pointwise(self) -> bool:
        """Whether each output pixel reads a single input pixel, in all channels."""
        return math.prod(self.weight.shape[2:]) == 1 and not any(self.layer.padding) and self.layer.groups == 1


class _ConvolutionTap(torch.autograd.Function):
    """The identity on a convolution's output, whose backward pass also replaces the convolution's own.

    The backward pass of the first reader of a tensor runs after those of its ``later`` readers, each of which has a
    graph edge to the first one's ``turn``, and forms the input gradient of all of them.
    """

    @staticmethod
    def forward(
        ctx: Any, receive: Receive, layer: _ConvolutionOptions, later: list[_InputTerm], turn: Tensor | None,
        anchor: Tensor, output: Tensor, inputs: Tensor, weight: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.receive, ctx.layer, ctx.later, ctx.is_later = receive, layer, later, turn is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs, weight)
        return output.detach(), anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, turn: None) -> tuple[Tensor | None, ...]:
        inputs, weight = (saved.detach() for saved in ctx.saved_tensors)
        ctx.receive((gradient,), (inputs,))
        own_terms = [] if gradient is None else [_InputTerm(gradient, weight, ctx.layer)]
        input_gradient = None
        if ctx.is_later:
            ctx.later.extend(own_terms)
        elif readers := [*own_terms, *ctx.later]:
            ctx.later.clear()
            input_gradient = _sum_of(readers, inputs)
        return None, None, None, None, None, None, input_gradient, None


_TAP: Callable[..., tuple[Tensor, Tensor]] = _ConvolutionTap.apply


class InputGradients:
    """The taps, in one forward pass, on convolutions whose input gradients are formed here."""

    def __init__(self) -> None:
        # By a tensor's graph node and output number: the later readers' terms, and the first reader's ``turn``.
        self._first: dict[tuple[Any, int], tuple[list[_InputTerm], Tensor]] = {}

    def forget(self) -> None:
        """Drop the state of the pass."""
        self._first.clear()

    def tapped(
        self, module: nn.Module, receive: Receive, anchor: Tensor, inputs: Tensor, output: Tensor
    ) -> Tensor | None:
        """``output`` with a tap that also forms the input gradient; None if the ordinary tap is to be used.

        That is if the kernel needs little memory anyway, or if ``output`` may be anything but the convolution of
        ``inputs`` with the module's own weight, with no weight gradient required.
        """
        if not isinstance(module, nn.Conv1d | nn.Conv2d) or not _is_plain(module):
            return None
        if inputs.device.type != "cpu" or inputs.dim() != module.weight.dim() or len(_parts(inputs, output)) < 2:
            return None
        if not _is_only_step(output, inputs, module.weight):
            return None
        assert not isinstance(module.padding, str)
        layer = _ConvolutionOptions(
            stride=module.stride, padding=module.padding, dilation=module.dilation, groups=module.groups
        )
        place = inputs.grad_fn, inputs.output_nr
        later, turn = self._first.get(place, ([], None))
        watched, own_turn = _TAP(receive, layer, later, turn, anchor, output.detach(), inputs, module.weight)
        if turn is None:
            self._first[place] = later, own_turn
        return watched


def _is_plain(module: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether the forward pass is torch's own, with the module's own weight and zero padding."""
    kind = nn.Conv1d if isinstance(module, nn.Conv1d) else nn.Conv2d
    is_own_forward = type(module).forward is kind.forward and type(module)._conv_forward is kind._conv_forward
    replaced = "forward" in vars(module) or "_conv_forward" in vars(module)
    padded_by_zeros = module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return is_own_forward and not replaced and padded_by_zeros and module._parameters.get("weight") is not None


def _is_only_step(output: Tensor, inputs: Tensor, weight: Tensor) -> bool:
    """Whether ``output`` is one convolution of ``inputs`` to autograd, with no gradient for weight or bias."""
    node = output.grad_fn
    if inputs.grad_fn is None or node is None or node.name() != "ConvolutionBackward0" or output._backward_hooks:
        return False
    first, *others = (function for function, _ in node.next_functions)
    same_type = inputs.dtype == weight.dtype == output.dtype
    return first is inputs.grad_fn and all(other is None for other in others) and same_type


def _sum_of(readers: Sequence[_InputTerm], inputs: Tensor) -> Tensor:
    """The gradient (n, ...) of ``inputs`` from all their readers, formed for a few examples at a time."""
    total = torch.empty_like(inputs)
    for i, reader in enumerate(readers):
        for rows in _parts(inputs, reader.gradient):
            reader.add_to(total, inputs, rows, fresh=i == 0)
    return total


def _parts(inputs: Tensor, outputs: Tensor) -> list[slice]:
    """Slices of a batch that are as even as possible and take about ``PART_BYTES`` per thread."""
    count, bytes_held = len(inputs), 2 * inputs.nbytes + outputs.nbytes
    limit = PART_BYTES * torch.get_num_threads()
    parts = 1 if bytes_held <= 2 * limit else -(-bytes_held // limit)
    return list(chunks(count, 1, -(-count // parts)))
