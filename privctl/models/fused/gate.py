"""Activations times other numbers, as in gated layers: torch's two operations write what is between them to memory.

Those of bfloat16 numbers are looked up; of those of float32 numbers, the SiLU is computed.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from privctl.machine_code.threads import SharedCode, run, tested_by_lanes
from privctl.models.activations import Kernel
from privctl.models.fused.code import Code, suits
from privctl.models.fused.lookup import gate_by_lookup_, suits_lookup

#: Relative.
_TOLERANCE = 4 * torch.finfo(torch.float32).eps


def suits_gate(activation: Kernel, gates: Tensor, values: Tensor) -> bool:
    """Whether ``gate_`` can, and should, be called for tensors (..., d)."""
    if gates.shape != values.shape or not gates.is_contiguous():
        return False
    if gates.dtype == torch.float32:
        return activation is functional.silu and suits(gates, values, lambda _: _tested_code())
    return suits_lookup(gates, values, gated=True)


def gate_(activation: Kernel, gates: Tensor, values: Tensor) -> Tensor:
    """Replace ``gates`` (..., d) by their ``activation``, rounded, times ``values`` (..., d); without gradients."""
    if gates.dtype == torch.bfloat16:
        return gate_by_lookup_(activation, gates, values)
    code = _tested_code()
    assert code is not None  # suits_gate was asked
    return _gated(code[0], gates, values)


def _gated(code: SharedCode, gates: Tensor, values: Tensor) -> Tensor:
    from privctl.models.fused.gate_program import GateFields

    values = values.contiguous()
    size = gates.shape[-1]
    run(code, gates.numel() // size, 0, GateFields(gates.data_ptr(), values.data_ptr(), size))
    return gates


@cache
def _tested_code() -> Code | None:
    def assembly(lanes: int) -> str:
        from privctl.models.fused import gate_program

        return gate_program.assembly(lanes)

    return tested_by_lanes("gate", assembly, _is_right)


def _is_right(code: SharedCode) -> bool:
    """Whether results for gates of all sizes, and for NaN, are those of double precision, rounded as often."""
    gates = torch.linspace(-80, 80, 48 * 64).view(48, 64)
    gates[::2] /= 40
    gates[-1, 3] = torch.nan
    values = torch.rand(gates.shape, generator=torch.Generator().manual_seed(0))
    exact = functional.silu(gates.double()) * values.double()
    found = _gated(code, gates.clone(), values).double()
    return bool(torch.isclose(found, exact, rtol=_TOLERANCE, atol=1e-30, equal_nan=True).all())
