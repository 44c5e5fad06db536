"""Rotary position embeddings: torch's seven operations write six tensors to memory, and this writes the result."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from privctl.machine_code.threads import SharedCode, run, tested_by_lanes
from privctl.models.fused.code import KINDS, Code, suits

#: Examples, heads, positions and features of the self-test.
_TESTED = (2, 3, 5, 96)


def rotated_by_torch(values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """``values`` (n, h, T, d) turned by angles whose ``cosines`` and ``sines`` are (n or 1, T, d); Su et al. 2021."""
    low, high = values.chunk(2, dim=-1)
    return values * cosines[:, None] + torch.cat((-high, low), dim=-1) * sines[:, None]


def suits_rotary(values: Tensor, cosines: Tensor, sines: Tensor) -> bool:
    """Whether ``rotated`` can, and should, be called for them."""
    if values.dim() != 4 or cosines.shape != sines.shape or sines.dtype != cosines.dtype:
        return False
    count, _, positions, size = values.shape
    if cosines.shape not in ((1, positions, size), (count, positions, size)) or size % 2:
        return False
    if not values.transpose(1, 2).is_contiguous() or not suits(values, cosines, _tested_code):
        return False
    code = _tested_code(values.dtype)
    return code is not None and size // 2 % code[1] == 0


def rotated(values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """As ``rotated_by_torch``, bit by bit, for ``values`` that are contiguous as (n, T, h, d); without gradients."""
    code = _tested_code(values.dtype)
    assert code is not None  # suits_rotary was asked
    return _rotated(code[0], values, cosines, sines)


def _rotated(code: SharedCode, values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    from privctl.models.fused.rotary_program import RotaryFields

    by_position, cosines, sines = values.transpose(1, 2), cosines.contiguous(), sines.contiguous()
    outputs = torch.empty_like(by_position)
    count, positions, heads, size = outputs.shape
    fields = RotaryFields(
        by_position.data_ptr(), outputs.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
        heads, size // 2, len(cosines) * positions,
    )  # fmt: skip
    run(code, count * positions, 0, fields)
    return outputs.transpose(1, 2)


@cache
def _tested_code(dtype: torch.dtype) -> Code | None:
    def assembly(lanes: int) -> str:
        from privctl.models.fused import rotary_program

        return rotary_program.assembly(KINDS[dtype], lanes)

    return tested_by_lanes("rotary", assembly, lambda code: _is_right(code, dtype))


def _is_right(code: SharedCode, dtype: torch.dtype) -> bool:
    """Whether results are torch's, for angles of each example and for common ones."""
    generator = torch.Generator().manual_seed(0)
    count, heads, positions, size = _TESTED
    values = torch.randn((count, positions, heads, size), generator=generator).to(dtype).transpose(1, 2)
    for examples in (1, count):
        turns = torch.randn((2, examples, positions, size), generator=generator).to(dtype)
        if not torch.equal(_rotated(code, values, *turns), rotated_by_torch(values, *turns)):
            return False
    return True
