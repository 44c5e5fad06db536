"""Rounding inside a differentiated network: straight-through estimates, as autograd functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Gives a rounded copy.
Rounding = Callable[[Tensor], Tensor]


class _StraightThrough(torch.autograd.Function):
    """Rounds, and lets the gradient through (Bengio et al. 2013, "straight-through")."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounding: Rounding) -> Tensor:
        return rounding(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Backward(torch.autograd.Function):
    """The identity, which rounds the gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounding: Rounding) -> Tensor:
        ctx.rounding = rounding
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rounding(gradient), None


#: ``values`` rounded; its gradient is that of what comes out.
round_forward: Callable[[Tensor, Rounding], Tensor] = _StraightThrough.apply

#: ``values`` themselves; their gradient is rounded.
round_backward: Callable[[Tensor, Rounding], Tensor] = _Backward.apply
