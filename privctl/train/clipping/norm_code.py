"""Gradients of LayerNorm and RMSNorm by machine code, for float32 numbers on a CPU where llvmlite is installed.

It reads inputs and output gradients once, and keeps no normalized inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from privctl.machine_code.threads import SharedCode, bits_of, can_share, run, tested_by_lanes

#: An example with fewer numbers takes torch's operations: tests of networks compile nothing.
_LEAST_NUMBERS = 1 << 13
#: How far the self-test's sums may be from those in float64, relative to the sums of sizes.
_TOLERANCE = 2.0**-21


def suits_code(inputs: Tensor, gradients: Tensor) -> bool:
    """Whether ``norm_sums`` can, and should, be called for tensors (n, T, d).

    It does not depend on earlier calls or the number of examples, so a resumed run rounds as an uninterrupted one.
    """
    return suits_lanes(inputs, gradients, _tested_code)


def suits_lanes(inputs: Tensor, gradients: Tensor, tested_code: Callable[[], tuple[SharedCode, int] | None]) -> bool:
    """Whether the code for tensors (n, _, d) is worth it, was ``tested``, and d is a multiple of its lanes."""
    if any(each.device.type != "cpu" or each.dtype != torch.float32 for each in (inputs, gradients)):
        return False
    if inputs.shape[1] * inputs.shape[2] < _LEAST_NUMBERS or not can_share():
        return False
    code = tested_code()
    return code is not None and inputs.shape[2] % code[1] == 0


def norm_sums(inputs: Tensor, gradients: Tensor, *, epsilon: float, centred: bool) -> tuple[Tensor, Tensor]:
    """The gradients (n, d) of each example for weight and bias, from (n, T, d); RMSNorm is not ``centred``."""
    code = _tested_code()
    assert code is not None  # suits_code was asked
    return _sums(code[0], inputs, gradients, epsilon, centred)


def _sums(code: SharedCode, inputs: Tensor, gradients: Tensor, epsilon: float, centred: bool) -> tuple[Tensor, Tensor]:
    from privctl.train.clipping.norm_program import NormFields

    inputs, gradients = (each if each.stride(2) == 1 else each.contiguous() for each in (inputs, gradients))
    count, positions, size = inputs.shape
    weights, biases = (torch.zeros(count, size) for _ in range(2))
    fields = NormFields(
        inputs.data_ptr(), inputs.stride(0), inputs.stride(1), gradients.data_ptr(), gradients.stride(0),
        gradients.stride(1), positions, size, bits_of(epsilon), centred, weights.data_ptr(), biases.data_ptr(),
    )  # fmt: skip
    run(code, count, 0, fields)
    return weights, biases


@cache
def _tested_code() -> tuple[SharedCode, int] | None:
    """The code and the lanes of its registers."""
    return tested_by_lanes("sums", _assembly, _is_right)


def _assembly(lanes: int) -> str:
    from privctl.train.clipping.norm_program import assembly

    return assembly(lanes)


def _is_right(code: SharedCode) -> bool:
    """Whether the sums of ``code`` for random numbers are those of double precision, for either kind of norm."""
    generator = torch.Generator().manual_seed(0)
    inputs, gradients = 1 + torch.randn(2, 3, 5, 48, generator=generator)
    wide, factors = inputs.double(), gradients.double()
    for centred, normalize in ((True, functional.layer_norm), (False, functional.rms_norm)):
        products = normalize(wide, wide.shape[-1:], eps=0.25) * factors
        for found, each in zip(_sums(code, inputs, gradients, 0.25, centred), (products, factors), strict=True):
            if not bool(((found - each.sum(1)).abs() <= _TOLERANCE * each.abs().sum(1)).all()):
                return False
    return True
