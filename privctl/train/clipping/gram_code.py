"""Norms from Gram matrices by machine code, for float32 numbers on a CPU where llvmlite is installed.

It computes half of each matrix, multiplies the two and sums them, without keeping either. The results are those of
torch's products up to rounding, and each entry is summed in more parts, so its error is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from privctl.machine_code.threads import SharedCode, can_share, run, tested

if TYPE_CHECKING:
    from privctl.train.clipping.gram_program import Tile

#: Below this many multiplications for an example, torch's products are used: tests of networks compile nothing.
_LEAST_PRODUCTS = 1 << 20
#: With more positions, Gram matrices leave the cache, and torch's products by blocks are as fast.
_MOST_POSITIONS = 256
#: How far the self-test's results may be from those in float64, relative to what is summed.
_TOLERANCE = 2.0**-21
#: Positions and features of the self-test: rows beyond whole tiles, and several registers.
_TESTED = (3, 70, 32, (48, 64))


@dataclass(frozen=True, slots=True)
class _Code:
    shared: SharedCode
    tile: Tile

    @classmethod
    def of(cls, tile: Tile) -> _Code:
        """Compile; raises RuntimeError if LLVM cannot."""
        from privctl.machine_code.compiling import CompiledModule
        from privctl.train.clipping.gram_program import assembly

        return cls(SharedCode.of(CompiledModule(assembly(tile)), "squares"), tile)


def suits_code(inputs: Tensor, gradients: Sequence[Tensor]) -> bool:
    """Whether ``gram_sums`` can, and should, be called for these.

    It does not depend on earlier calls or the number of examples, so a resumed run rounds as an uninterrupted one.
    """
    tensors = (inputs, *gradients)
    if any(each.device.type != "cpu" or each.dtype != torch.float32 for each in tensors):
        return False
    positions, sizes = inputs.shape[1], [each.shape[2] for each in tensors]
    if not 1 < positions <= _MOST_POSITIONS or positions**2 * sum(sizes) < _LEAST_PRODUCTS:
        return False
    if not can_share():
        return False
    code = _tested_code()
    return code is not None and not any(size % code.tile.lanes for size in sizes)


def gram_sums(inputs: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Sums (4, layers, n) float64 for layers that read one input a (n, T, d), from output gradients g (n, T, p).

    The four are the squared norm, and sums over positions of |a| |g|, |a| and |g|.
    """
    code = _tested_code()
    assert code is not None  # suits_code was asked
    return _sums(code, inputs, gradients)


def _sums(code: _Code, inputs: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    from privctl.train.clipping.gram_program import RESULTS, GramFields

    tensors = [each if each.stride(2) == 1 else each.contiguous() for each in (inputs, *gradients)]
    table = torch.tensor([[each.data_ptr(), each.stride(0), each.stride(1), each.shape[2]] for each in tensors])
    count, positions = inputs.shape[:2]
    rows = -(-positions // code.tile.rows) * code.tile.rows
    width = -(-rows // code.tile.lanes) * code.tile.lanes
    results = torch.empty(count, len(gradients), RESULTS, dtype=torch.float64)
    fields = GramFields(table.data_ptr(), len(gradients), positions, rows, width, results.data_ptr())
    run(code.shared, count, fields.scratch_numbers, fields)
    return results.permute(2, 1, 0)


@cache
def _tested_code() -> _Code | None:
    return tested(_compiled, _is_right)


def _compiled() -> _Code:
    from privctl.machine_code.compiling import processor_features
    from privctl.train.clipping import gram_program

    features = processor_features()
    if "avx512f" in features:
        return _Code.of(gram_program.AVX512)
    return _Code.of(gram_program.AVX2 if {"avx2", "fma"} <= features else gram_program.OTHER)


def _is_right(code: _Code) -> bool:
    """Whether the results of ``code`` for random numbers are those of double precision."""
    count, positions, features, outputs = _TESTED
    generator = torch.Generator().manual_seed(0)
    inputs, *gradients = (torch.randn(count, positions, size, generator=generator) for size in (features, *outputs))
    lengths, of_inputs = [], inputs.double().norm(dim=2)
    squares = []
    for gradient in gradients:
        squares.append(torch.bmm(gradient.double().mT, inputs.double()).square().sum((1, 2)))
        lengths.append((of_inputs * gradient.double().norm(dim=2)).sum(1))
    of_gradients = torch.stack([gradient.double().norm(dim=2).sum(1) for gradient in gradients])
    sums = (torch.stack(lengths), of_inputs.sum(1).expand_as(of_gradients), of_gradients)
    expected, scales = torch.stack([torch.stack(squares), *sums]), torch.stack([sums[0].square(), *sums])
    return bool(((_sums(code, inputs, gradients) - expected).abs() <= _TOLERANCE * scales).all())
