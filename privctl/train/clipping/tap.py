"""Functions through which inputs, output gradients and gradients of copies are seen in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Tap(torch.autograd.Function):
    """The identity, whose backward pass hands the saved inputs and the incoming gradients to ``receive``.

    Inputs are saved by autograd, so gradient checkpointing drops and recomputes them like everything else. The
    ``anchor`` requires a gradient, and so every output does, though no weight does.
    """

    @staticmethod
    def forward(
        ctx: Any, receive: Callable[..., None], count: int, anchor: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the first ``count`` tensors, the outputs; the others are the inputs."""
        ctx.receive, ctx.inputs = receive, len(tensors) - count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[count:])
        return tuple(output.detach() for output in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients as they are."""
        ctx.receive(gradients, ctx.saved_tensors)
        return (None, None, None, *gradients, *[None] * ctx.inputs)


TAP: Callable[..., tuple[Tensor, ...]] = Tap.apply


class ParameterCopies(torch.autograd.Function):
    """Copies of a parameter, whose gradients (n, *shape) the backward pass hands to ``receive``."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[[Tensor], None], count: int, anchor: Tensor, parameter: Tensor) -> Tensor:
        """Return ``count`` copies of the parameter that share its memory."""
        ctx.receive = receive
        return parameter.detach().expand(count, *parameter.shape)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the sum of the gradients for the parameter, if it requires one."""
        ctx.receive(gradients)
        return None, None, None, gradients.sum(0) if ctx.needs_input_grad[3] else None


COPIES: Callable[..., Tensor] = ParameterCopies.apply
