"""Activations of bfloat16 numbers, of which there are 65,536: each result is looked up among torch's own."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from privctl.machine_code.threads import SharedCode, run, tested_by_lanes
from privctl.models.activations import Kernel
from privctl.models.fused.code import Code, suits

_NUMBERS = 1 << 16


def suits_lookup(numbers: Tensor, others: Tensor | None = None, *, gated: bool = False) -> bool:
    """Whether ``looked_up``, or if it is ``gated`` ``gate_by_lookup_``, can and should be called for them."""
    if numbers.dtype != torch.bfloat16 or not numbers.is_contiguous():
        return False
    return suits(numbers, numbers if others is None else others, lambda _: _tested_code(gated))


def looked_up(activation: Kernel, numbers: Tensor) -> Tensor:
    """``activation`` of contiguous ``numbers`` (..., d), without gradients; it must be a constant of its module."""
    code = _tested_code(False)
    assert code is not None  # suits_lookup was asked
    return _looked_up(code[0], activation, numbers)


def gate_by_lookup_(activation: Kernel, gates: Tensor, values: Tensor) -> Tensor:
    """Replace contiguous ``gates`` (..., d) by their activation times ``values`` (..., d), without gradients."""
    code = _tested_code(True)
    assert code is not None  # suits_lookup was asked
    return _gated(code[0], activation, gates, values)


def _looked_up(code: SharedCode, activation: Kernel, numbers: Tensor) -> Tensor:
    outputs = torch.empty_like(numbers)
    _run(code, activation, numbers, outputs, outputs)
    return outputs


def _gated(code: SharedCode, activation: Kernel, gates: Tensor, values: Tensor) -> Tensor:
    _run(code, activation, gates, values.contiguous(), gates)
    return gates


def _run(code: SharedCode, activation: Kernel, numbers: Tensor, others: Tensor, outputs: Tensor) -> None:
    from privctl.models.fused.lookup_program import LookupFields

    size, results = numbers.shape[-1], _results_of(activation)
    fields = LookupFields(results.data_ptr(), numbers.data_ptr(), others.data_ptr(), outputs.data_ptr(), size)
    run(code, numbers.numel() // size, 0, fields)


@cache
def _results_of(activation: Kernel) -> Tensor:
    """The results (65,537,) for all numbers, in the order of their bits, and a zero: a look-up reads two numbers."""
    with torch.inference_mode():
        return torch.cat([activation(_all_numbers()), torch.zeros(1, dtype=torch.bfloat16)])


def _all_numbers() -> Tensor:
    """All bfloat16 numbers, in the order of their bits as an unsigned integer."""
    return torch.arange(_NUMBERS, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@cache
def _tested_code(gated: bool) -> Code | None:
    def assembly(lanes: int) -> str:
        from privctl.models.fused import lookup_program

        return lookup_program.assembly(lanes, gated=gated)

    return tested_by_lanes("lookup", assembly, lambda code: _is_right(code, gated))


def _is_right(code: SharedCode, gated: bool) -> bool:
    """Whether results are torch's bit by bit, for all numbers; NaN may be another NaN in a product."""
    numbers = _all_numbers().view(64, -1)
    if not gated:
        found, expected = _looked_up(code, functional.silu, numbers), functional.silu(numbers)
        return torch.equal(found.view(torch.int16), expected.view(torch.int16))
    values = torch.randn(numbers.shape, generator=torch.Generator().manual_seed(0)).to(numbers.dtype)
    found, expected = _gated(code, functional.silu, numbers.clone(), values), functional.silu(numbers) * values
    return bool(torch.isclose(found, expected, rtol=0, atol=0, equal_nan=True).all())
