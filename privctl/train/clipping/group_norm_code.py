"""Gradients of GroupNorm by machine code, for float32 numbers on a CPU where llvmlite is installed.

It reads output gradients once, inputs once from memory and twice more from the cache, and keeps no normalized inputs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from privctl.machine_code.threads import SharedCode, bits_of, run, tested_by_lanes
from privctl.train.clipping.norm_code import suits_lanes

#: How far the self-test's sums may be from those in float64, relative to the sums of sizes.
_TOLERANCE = 2.0**-21
#: Examples, channels, places and groups of the self-test: sums of more than one part.
_TESTED = (2, 6, 1104, 3)


def suits_groups(inputs: Tensor, gradients: Tensor) -> bool:
    """Whether ``group_norm_sums`` can, and should, be called for tensors (n, channels, ...)."""
    return suits_lanes(inputs.flatten(2), gradients.flatten(2), _tested_code)


def group_norm_sums(inputs: Tensor, gradients: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """The gradients (n, channels) of each example for weight and bias, from tensors (n, channels, ...)."""
    code = _tested_code()
    assert code is not None  # suits_groups was asked
    return _sums(code[0], inputs, gradients, groups, epsilon)


def _sums(code: SharedCode, inputs: Tensor, gradients: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Tensor]:
    from privctl.train.clipping.group_norm_program import GroupNormFields

    inputs, gradients = inputs.contiguous(), gradients.contiguous()
    count, channels = inputs.shape[:2]
    weights, biases = torch.empty(2, count, channels)
    fields = GroupNormFields(
        inputs.data_ptr(), gradients.data_ptr(), channels, inputs[0, 0].numel(), groups, bits_of(epsilon),
        weights.data_ptr(), biases.data_ptr(),
    )  # fmt: skip
    run(code, count, 0, fields)
    return weights, biases


@cache
def _tested_code() -> tuple[SharedCode, int] | None:
    """The code and the lanes of its registers."""
    return tested_by_lanes("sums", _assembly, _is_right)


def _assembly(lanes: int) -> str:
    from privctl.train.clipping.group_norm_program import assembly

    return assembly(lanes)


def _is_right(code: SharedCode) -> bool:
    """Whether the sums of ``code`` for random numbers are those of double precision."""
    *shape, groups = _TESTED
    generator = torch.Generator().manual_seed(0)
    inputs, gradients = 1 + torch.randn(2, *shape, generator=generator)
    factors = gradients.double()
    products = functional.group_norm(inputs.double(), groups, eps=0.25) * factors
    return all(
        bool(((found - each.sum(2)).abs() <= _TOLERANCE * each.abs().sum(2)).all())
        for found, each in zip(_sums(code, inputs, gradients, groups, 0.25), (products, factors), strict=True)
    )
