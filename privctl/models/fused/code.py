"""When the code of a part suits, and the kinds of numbers that parts are written for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privctl.machine_code.threads import SharedCode, can_share

#: The kinds of numbers that programs are written for.
KINDS = {torch.float32: "F32", torch.bfloat16: "BF16"}
#: Fewer numbers take torch's operations: tests of networks compile nothing.
_LEAST_NUMBERS = 1 << 15

#: Code for one kind of numbers, and the lanes of its registers.
Code = tuple[SharedCode, int]


def suits(values: Tensor, other: Tensor, code_for: Callable[[torch.dtype], Code | None]) -> bool:
    """Whether the code for ``values`` (..., d) and an ``other`` tensor, tested by ``code_for``, can and should be run.

    It gives results without gradients.
    """
    if values.device.type != "cpu" or values.dtype not in KINDS or other.dtype != values.dtype:
        return False
    if torch.is_grad_enabled() and (values.requires_grad or other.requires_grad):
        return False
    if values.numel() < _LEAST_NUMBERS or not can_share():
        return False
    code = code_for(values.dtype)
    return code is not None and values.shape[-1] % code[1] == 0
