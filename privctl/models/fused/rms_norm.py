"""RMSNorm: torch's operations read and write a row six times, and this reads it from memory once."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from privctl.machine_code.threads import SharedCode, bits_of, run, tested_by_lanes
from privctl.models.fused.code import KINDS, Code, suits

#: Rows and features of the self-test.
_TESTED = (5, 96)


def suits_rms_norm(values: Tensor, weight: Tensor) -> bool:
    """Whether ``rms_norm`` can, and should, be called for ``values`` (..., d)."""
    return suits(values, weight, _tested_code)


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``values`` (..., d) / sqrt(mean square + ``epsilon``), rounded, times ``weight`` (d,); without gradients."""
    code = _tested_code(values.dtype)
    assert code is not None  # suits_rms_norm was asked
    return _normalized(code[0], values, weight, epsilon)


def _normalized(code: SharedCode, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    from privctl.models.fused.rms_norm_program import RmsNormFields

    values, weight = values.contiguous(), weight.contiguous()
    outputs, size = torch.empty_like(values), values.shape[-1]
    fields = RmsNormFields(values.data_ptr(), weight.data_ptr(), outputs.data_ptr(), size, bits_of(epsilon))
    run(code, values.numel() // size, 0, fields)
    return outputs


@cache
def _tested_code(dtype: torch.dtype) -> Code | None:
    def assembly(lanes: int) -> str:
        from privctl.models.fused import rms_norm_program

        return rms_norm_program.assembly(KINDS[dtype], lanes)

    return tested_by_lanes("norm", assembly, lambda code: _is_right(code, dtype))


def _is_right(code: SharedCode, dtype: torch.dtype) -> bool:
    """Whether results for random rows, of which one has NaN, are those of double precision, rounded as often."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_TESTED, generator=generator).mul_(torch.tensor([[1e-3], [1.0], [30.0], [1e4], [1.0]]))
    values[-1, 3] = torch.nan
    values, weight = values.to(dtype), torch.rand(_TESTED[1], generator=generator).to(dtype)
    wide = values.double()
    exact = wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    found = _normalized(code, values, weight, 1e-6)
    near = torch.isclose(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0, equal_nan=True)
    return bool(near.all())
