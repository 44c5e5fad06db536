"""Matrix products of factors in any precision, accumulated in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from privctl.train.clipping.terms import add_or_take

_HALF = (torch.bfloat16, torch.float16)

#: Libraries, and their kinds of products, each with a precision for float32 of its own; objects that torch puts in the
#: places of its modules. Then the precisions that reduce nothing.
_ONEDNN: Any = torch.backends.mkldnn
_CUDNN: Any = torch.backends.cudnn
_ON_CPU: tuple[Any, ...] = (_ONEDNN.matmul, _ONEDNN.conv, _ONEDNN.rnn)
_ON_GPU: tuple[Any, ...] = (torch.backends.cuda.matmul, _CUDNN.conv, _CUDNN.rnn)
_EXACT = ("none", "ieee")


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Inside, no autocast, TF32 or reduced float32 products on ``device``: norms are exact to float32 rounding.

    This holds whichever of torch's settings allowed such products, older or newer; afterwards all are as before.
    """
    kinds = _ON_CPU if device.type == "cpu" else (*_ON_CPU, *_ON_GPU)
    if all(kind.fp32_precision in _EXACT for kind in kinds) and not torch.is_autocast_enabled(device.type):
        return nullcontext()  # a fast path, as a backward pass calls this at every layer
    return _at_full_precision(device)


@contextmanager
def _at_full_precision(device: torch.device) -> Iterator[None]:
    before = [
        *((kind, _set_for(kind, _ONEDNN)) for kind in _ON_CPU),
        *((kind, _set_for(kind, _CUDNN)) for kind in _ON_GPU),
    ]
    # torch raises where it is asked for an older setting that contradicts a newer one, and a module may ask.
    cudnn = _older_setting_of_cudnn()
    for kind, _ in before:
        kind.fp32_precision = "ieee"
    matmul = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    _CUDNN.allow_tf32 = False
    for kind, _ in before:
        kind.fp32_precision = "ieee"  # the older settings leave it to torch.backends.fp32_precision
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        _CUDNN.allow_tf32 = cudnn
        for kind, precision in before:
            kind.fp32_precision = precision


def _set_for(kind: Any, library: Any) -> str:
    """The precision set for this ``kind`` of product alone; "none" where it follows that of its ``library``."""
    precision: str = kind.fp32_precision
    return "none" if precision == library.fp32_precision else precision


def _older_setting_of_cudnn() -> bool:
    """Whether torch's older setting allows TF32 in cuDNN, which torch tells only where the newer ones agree.

    Leaves the newer ones changed.
    """
    for kind in (_CUDNN.conv, _CUDNN.rnn):
        kind.fp32_precision = "tf32"
    try:
        return bool(_CUDNN.allow_tf32)
    except RuntimeError:
        return False


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

    The operands are (..., r) and (..., c), ``scale`` broadcasts to (..., 1), and ``total`` is (r, c).
    ``left_scaled`` tells which operand is
    multiplied by ``scale``; choose the smaller. A scaled half-precision operand is split into a sum of two, as rounding
    it to one would move a gradient's norm by up to 2^-9 of its slack.
    """
    exact = ((left if left_scaled else right).to(total.dtype) * scale.to(total.dtype)).flatten(0, -2)
    left, right = left.flatten(0, -2), right.flatten(0, -2)
    if left.dtype not in _HALF:
        one, other = (exact, right) if left_scaled else (left, exact)
        return total.addmm_(one.mT, other.to(total.dtype), beta=0 if fresh else 1)
    high = exact.to(left.dtype)
    for term in (high, (exact - high).to(left.dtype)):
        one, other = (term, right) if left_scaled else (left, term)
        total = add_or_take(total, torch.mm(one.mT, other, out_dtype=torch.float32), fresh=fresh and term is high)
    return total
