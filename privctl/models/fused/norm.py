"""RMSNorm, whose row torch's operations read and write six times, and LayerNorm."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from privctl.machine_code.threads import SharedCode, bits_of, run, tested_by_lanes
from privctl.models.fused.code import KINDS, Code, suits

#: Rows and features of the self-test.
_TESTED = (5, 96)


def suits_rms_norm(values: Tensor, weight: Tensor) -> bool:
    """Whether ``rms_norm`` can, and should, be called for ``values`` (..., d)."""
    return suits(values, weight, lambda dtype: _tested_code(dtype, False))


def suits_layer_norm(values: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether ``layer_norm`` can, and should, be called for ``values`` (..., d); in float32 it saves little."""
    if values.dtype != torch.bfloat16 or values.shape[-1:] != weight.shape or bias.shape != weight.shape:
        return False
    needs_gradient = torch.is_grad_enabled() and bias.requires_grad
    kinds_agree = bias.dtype == values.dtype and not needs_gradient
    return kinds_agree and suits(values, weight, lambda dtype: _tested_code(dtype, True))


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``values`` (..., d) / sqrt(mean square + ``epsilon``), rounded, times ``weight`` (d,); without gradients."""
    code = _tested_code(values.dtype, False)
    assert code is not None  # suits_rms_norm was asked
    return _normalized(code[0], values, weight, weight, epsilon)


def layer_norm(values: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Torch's function for ``values`` (..., d) and ``weight`` and ``bias`` (d,), up to rounding; without gradients."""
    code = _tested_code(values.dtype, True)
    assert code is not None  # suits_layer_norm was asked
    return _normalized(code[0], values, weight, bias, epsilon)


def _normalized(code: SharedCode, values: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    from privctl.models.fused.norm_program import RowNormFields

    values, weight, bias = values.contiguous(), weight.contiguous(), bias.contiguous()
    outputs, size = torch.empty_like(values), values.shape[-1]
    addresses = values.data_ptr(), weight.data_ptr(), bias.data_ptr(), outputs.data_ptr()
    run(code, values.numel() // size, 0, RowNormFields(*addresses, size, bits_of(epsilon)))
    return outputs


@cache
def _tested_code(dtype: torch.dtype, centred: bool) -> Code | None:
    def assembly(lanes: int) -> str:
        from privctl.models.fused import norm_program

        return norm_program.assembly(KINDS[dtype], lanes, centred=centred)

    return tested_by_lanes("norm", assembly, lambda code: _is_right(code, dtype, centred=centred))


def _is_right(code: SharedCode, dtype: torch.dtype, *, centred: bool) -> bool:
    """Whether results for random rows, of which one has NaN, are those of double precision, rounded as often."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_TESTED, generator=generator).mul_(torch.tensor([[1e-3], [1.0], [30.0], [1e4], [1.0]]))
    values[-1, 3] = torch.nan
    values = values.to(dtype)
    weight, bias = torch.rand((2, _TESTED[1]), generator=generator).to(dtype)
    wide, size = values.double(), weight.shape
    if centred:
        exact = functional.layer_norm(wide, size, weight.double(), bias.double(), 1e-6)
    else:
        exact = functional.rms_norm(wide, size, weight.double(), 1e-6)
    found, unit = _normalized(code, values, weight, bias, 1e-6), torch.finfo(dtype).eps
    # A bias may cancel what it is added to.
    near = torch.isclose(found.double(), exact, rtol=2 * unit, atol=8 * 2.0**-24 if centred else 0, equal_nan=True)
    return bool(near.all())
