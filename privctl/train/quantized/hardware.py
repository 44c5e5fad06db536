"""Linear layers whose forward and input-gradient products are computed in FP8, if the hardware supports that.

The factors have already been rounded to an FP8 grid, so converting them is exact, and the products differ from the
simulation only in how their sums are rounded. Weight gradients are computed elsewhere, one example at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privctl.train.quantized.floating import Float8, Float8Kind
from privctl.train.quantized.formats import NumberFormat

#: The first CUDA capability with FP8 products.
_CAPABLE = (8, 9)

#: The products require sizes that are multiples of this.
_MULTIPLE = 16


def is_supported(form: NumberFormat, inputs: Tensor, weight: Tensor) -> bool:
    """Whether ``linear`` supports these: an FP8 format, bfloat16 inputs and a device with FP8 products."""
    is_fp8 = isinstance(form.inputs, Float8) and isinstance(form.gradients, Float8)
    return (
        is_fp8
        and inputs.is_cuda
        and inputs.dtype == torch.bfloat16
        and all(size % _MULTIPLE == 0 for size in weight.shape)
        and torch.cuda.get_device_capability(inputs.device) >= _CAPABLE
    )


class _Linear(torch.autograd.Function):
    """Inputs (m, d) times weight (p, d), both on E4M3 grids; output gradients are on E5M2 grids."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        left, left_scale = codes(inputs, Float8Kind.E4M3)
        flat, scale = codes(weight.reshape(1, -1), Float8Kind.E4M3)
        right = flat.view(weight.shape)
        ctx.save_for_backward(right, scale, inputs if ctx.needs_input_grad[1] else None)
        return multiply(left, right, left_scale, scale, inputs.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weight, scale, inputs = ctx.saved_tensors
        input_gradient = None
        if ctx.needs_input_grad[0]:
            left, left_scale = codes(gradient, Float8Kind.E5M2)
            input_gradient = multiply(left, weight.t().contiguous(), left_scale, scale, gradient.dtype)
        weight_gradient = None if inputs is None else (gradient.mT @ inputs).to(torch.float32)
        return input_gradient, weight_gradient


_LINEAR: Callable[[Tensor, Tensor], Tensor] = _Linear.apply


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The linear layer of ``inputs`` (..., d) with ``weight`` (p, d), (..., p) in the precision of ``inputs``."""
    product = _LINEAR(inputs.reshape(-1, inputs.shape[-1]), weight).view(*inputs.shape[:-1], -1)
    return product if bias is None else product + bias.to(product.dtype)


def codes(values: Tensor, kind: Float8Kind) -> tuple[Tensor, Tensor]:
    """FP8 codes (r, d) and row scales (r, 1) float32 for ``values`` that lie on such a grid; the conversion is exact.

    The scale may be half of the one that made the grid, but values on a grid are also on the finer one.
    """
    (scale,) = Float8(kind=kind).scales(values)
    return (values / scale).to(kind.dtype), scale.to(torch.float32)


def multiply(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The product (m, p) of ``left`` (m, d) and ``right`` (p, d) transposed, both contiguous FP8.

    Their scales are (m, 1) and (1, 1).
    """
    return torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale.expand(1, len(right)).contiguous(), out_dtype=dtype
    )
