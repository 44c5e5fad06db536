"""Matrix products of factors in any precision, accumulated in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from privctl.train.clipping.terms import add_or_take

_HALF = (torch.bfloat16, torch.float16)


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Inside, no autocast, TF32 or reduced float32 products on ``device``: norms are exact to float32 rounding."""
    precision = torch.get_float32_matmul_precision()
    if device.type == "cpu" and precision == "highest" and not torch.is_autocast_enabled("cpu"):
        return nullcontext()  # a fast path, as a backward pass calls this at every layer
    return _at_full_precision(device, precision)


@contextmanager
def _at_full_precision(device: torch.device, precision: str) -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    convolutions = torch.backends.cudnn
    cudnn_settings = {"benchmark": convolutions.benchmark, "deterministic": convolutions.deterministic}
    try:
        with (
            torch.autocast(device.type, enabled=False),
            convolutions.flags(enabled=convolutions.enabled, allow_tf32=False, **cudnn_settings),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def operand(values: Tensor) -> Tensor:
    """Prepare values for the products below: half precision is kept only where its products accumulate in float32."""
    return values.float() if values.dtype in _HALF and not values.is_cuda else values


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """The product (n, r, c) of operands (n, r, k) and (n, k, c)."""
    if left.dtype in _HALF:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left, right)


def add_product(total: Tensor, left: Tensor, right: Tensor, *, left_scaled: bool, scale: Tensor, fresh: bool) -> Tensor:
    """Add left^T diag(scale) right to ``total``; returns what holds the sum, as ``GradientTerm.add_weighted`` does.

    The operands are (m, r) and (m, c), ``scale`` is (m,) and ``total`` (r, c). ``left_scaled`` tells which operand is
    multiplied by ``scale``; choose the smaller. A scaled half-precision operand is split into a sum of two, as rounding
    it to one would move a gradient's norm by up to 2^-9 of its slack.
    """
    exact = (left if left_scaled else right).to(total.dtype) * scale[:, None].to(total.dtype)
    if left.dtype not in _HALF:
        one, other = (exact, right) if left_scaled else (left, exact)
        return total.addmm_(one.mT, other.to(total.dtype), beta=0 if fresh else 1)
    high = exact.to(left.dtype)
    for term in (high, (exact - high).to(left.dtype)):
        one, other = (term, right) if left_scaled else (left, term)
        total = add_or_take(total, torch.mm(one.mT, other, out_dtype=torch.float32), fresh=fresh and term is high)
    return total
