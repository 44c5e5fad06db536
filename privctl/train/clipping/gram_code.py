"""Norms from Gram matrices by machine code, for float32 numbers on a CPU where llvmlite is installed.

It computes half of each matrix, multiplies the two and sums them, without keeping either. The results are those of
torch's products up to rounding, and each entry is summed in more parts, so its error is smaller.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

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
#: What OpenMP tells a thread: its number, and the size of its team.
_OPENMP = ("omp_get_thread_num", "omp_get_num_threads")
_ADDRESS = ctypes.c_void_p


class GramSums(NamedTuple):
    """For each layer and example, float64: the squared norm, and sums over positions of |a| |g|, |a| and |g|."""

    square: Tensor
    lengths: Tensor
    of_inputs: Tensor
    of_gradients: Tensor


@dataclass(frozen=True, slots=True)
class _Code:
    squares: Callable[..., None]
    share: object
    tile: Tile
    module: object  # keeps the code alive

    @classmethod
    def of(cls, tile: Tile) -> _Code:
        """Compile; raises RuntimeError if LLVM cannot."""
        from privctl.machine_code import CompiledModule
        from privctl.train.clipping.gram_program import assembly

        module = CompiledModule(assembly(tile))
        squares = module.function("squares", None, [_ADDRESS, ctypes.c_int64, ctypes.c_int64, _ADDRESS])
        return cls(squares, module.function("share", None, [_ADDRESS]), tile, module)


def suits_code(inputs: Tensor, gradients: Sequence[Tensor]) -> bool:
    """Whether ``gram_sums`` can, and should, be called for these.

    It does not depend on earlier calls or the number of examples, so a resumed run rounds as an uninterrupted one.
    """
    tensors = (inputs, *gradients)
    if any(each.device.type != "cpu" or each.dtype != torch.float32 or each.is_meta for each in tensors):
        return False
    positions, sizes = inputs.shape[1], [each.shape[2] for each in tensors]
    if not 1 < positions <= _MOST_POSITIONS or positions**2 * sum(sizes) < _LEAST_PRODUCTS:
        return False
    if torch.get_num_threads() > 1 and _team() is None:
        return False
    code = _tested_code()
    return code is not None and not any(size % code.tile.lanes for size in sizes)


def gram_sums(inputs: Tensor, gradients: Sequence[Tensor]) -> GramSums:
    """The sums (layers, n) for layers that read one input (n, T, d), from their output gradients (n, T, p)."""
    code = _tested_code()
    assert code is not None  # suits_code was asked
    return _sums(code, inputs, gradients)


def _sums(code: _Code, inputs: Tensor, gradients: Sequence[Tensor]) -> GramSums:
    from privctl.train.clipping.gram_program import RESULTS, Work

    tensors = [each if each.stride(2) == 1 else each.contiguous() for each in (inputs, *gradients)]
    table = torch.tensor([[each.data_ptr(), each.stride(0), each.stride(1), each.shape[2]] for each in tensors])
    count, positions = inputs.shape[:2]
    rows = -(-positions // code.tile.rows) * code.tile.rows
    width = -(-rows // code.tile.lanes) * code.tile.lanes
    team = _team()
    threads = max(1, min(torch.get_num_threads(), count)) if team else 1
    scratch = torch.zeros(threads, 2, rows, width)
    results = torch.empty(count, len(gradients), RESULTS, dtype=torch.float64)
    work = Work(
        table.data_ptr(), len(gradients), positions, rows, width, count, scratch.data_ptr(), results.data_ptr(),
        *(team.functions if team else ()),
    )  # fmt: skip
    numbers = torch.tensor(work)
    if team and threads > 1:
        team.run(code.share, numbers.data_ptr(), threads, 0)
    else:
        code.squares(numbers.data_ptr(), 0, count, scratch.data_ptr())
    return GramSums(*results.permute(2, 1, 0))


@dataclass(frozen=True, slots=True)
class _Team:
    """Torch's own threads: others would wait while these spin after each operation."""

    run: Callable[..., None]
    functions: tuple[int, int]


@cache
def _team() -> _Team | None:
    """The OpenMP that torch uses; None if it uses another way to run threads."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        run = library.GOMP_parallel
        functions = [ctypes.cast(library[name], _ADDRESS).value for name in _OPENMP]
    except (OSError, AttributeError):
        return None
    run.argtypes, run.restype = [_ADDRESS, _ADDRESS, ctypes.c_uint, ctypes.c_uint], None
    return _Team(run, (functions[0] or 0, functions[1] or 0))


@cache
def _tested_code() -> _Code | None:
    """The compiled code; None if llvmlite is not installed, or if the code cannot be compiled or fails its test."""
    try:
        from privctl.machine_code import processor_features
        from privctl.train.clipping import gram_program
    except ImportError:
        return None
    features = processor_features()
    tile = gram_program.OTHER
    if "avx512f" in features:
        tile = gram_program.AVX512
    elif {"avx2", "fma"} <= features:
        tile = gram_program.AVX2
    try:
        code = _Code.of(tile)
    except (RuntimeError, OSError):
        return None
    return code if _is_right(code) else None


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
    expected = GramSums(
        torch.stack(squares), torch.stack(lengths), of_inputs.sum(1).expand_as(of_gradients), of_gradients
    )
    scales = (expected.lengths.square(), *expected[1:])
    return all(
        bool(((found - right).abs() <= _TOLERANCE * scale).all())
        for found, right, scale in zip(_sums(code, inputs, gradients), expected, scales, strict=True)
    )
