"""SiLU times another number, as in gated layers: torch's two operations write what is between them to memory."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from privctl.machine_code.threads import SharedCode, run, tested_by_lanes
from privctl.models.fused.code import KINDS, Code, suits

#: Relative: bfloat16 rounds twice, to half a unit of the last place each.
_TOLERANCE = {torch.bfloat16: 1.25 * torch.finfo(torch.bfloat16).eps, torch.float32: 4 * torch.finfo(torch.float32).eps}


def suits_gate(gates: Tensor, values: Tensor) -> bool:
    """Whether ``gate_`` can, and should, be called for tensors (..., d)."""
    return gates.shape == values.shape and gates.is_contiguous() and suits(gates, values, _tested_code)


def gate_(gates: Tensor, values: Tensor) -> Tensor:
    """Replace contiguous ``gates`` (..., d) by SiLU(gates), rounded, times ``values`` (..., d); without gradients."""
    code = _tested_code(gates.dtype)
    assert code is not None  # suits_gate was asked
    return _gated(code[0], gates, values)


def _gated(code: SharedCode, gates: Tensor, values: Tensor) -> Tensor:
    from privctl.models.fused.gate_program import GateFields

    values = values.contiguous()
    size = gates.shape[-1]
    run(code, gates.numel() // size, 0, GateFields(gates.data_ptr(), values.data_ptr(), size))
    return gates


@cache
def _tested_code(dtype: torch.dtype) -> Code | None:
    def assembly(lanes: int) -> str:
        from privctl.models.fused import gate_program

        return gate_program.assembly(KINDS[dtype], lanes)

    return tested_by_lanes("gate", assembly, lambda code: _is_right(code, dtype))


def _is_right(code: SharedCode, dtype: torch.dtype) -> bool:
    """Whether results for gates of all sizes, and for NaN, are those of double precision, rounded as often."""
    gates = torch.linspace(-80, 80, 48 * 64).view(48, 64)
    gates[::2] /= 40
    gates[-1, 3] = torch.nan
    gates, values = gates.to(dtype), torch.rand(gates.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = torch.nn.functional.silu(gates.double()) * values.double()
    found = _gated(code, gates.clone(), values).double()
    return bool(torch.isclose(found, exact, rtol=_TOLERANCE[dtype], atol=1e-30, equal_nan=True).all())
