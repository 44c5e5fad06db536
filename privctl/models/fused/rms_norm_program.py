"""The program for RMSNorm's forward pass, for LLVM: see ``rms_norm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import (
    DOUBLE,
    FLOAT,
    WorkFunction,
    at,
    broadcast,
    integer,
    loop,
    multiply_add,
    sum_of_lanes,
    zeros,
)
from privctl.models.fused.numbers import ELEMENTS, read, rounded, write


class RmsNormFields(NamedTuple):
    """The part of the array of work after its header.

    ``inputs`` (rows, size), ``weight`` (size,) and ``outputs`` (rows, size) are addresses of contiguous numbers of one
    kind. ``size`` is a multiple of the lanes, and ``epsilon`` has the bits of a float64 number.
    """

    inputs: int
    weight: int
    outputs: int
    size: int
    epsilon: int


def assembly(kind: str, lanes: int) -> str:
    """LLVM IR of ``norm``, a ``WorkFunction`` without scratch.

    The normalized row is rounded to ``kind``, and so is its product with the weight.
    """
    module = ir.Module("rms_norm")
    work = WorkFunction(module, "norm", RmsNormFields._fields)
    builder, fused = work.builder, multiply_add(module, lanes)
    sqrt = ir.Function(module, ir.FunctionType(FLOAT, [FLOAT]), "llvm.sqrt.f32")
    inputs, weight, outputs = work.addresses("inputs", "weight", "outputs")
    size = work.number("size")
    epsilon = builder.fptrunc(work.number("epsilon", DOUBLE), FLOAT)
    count = builder.uitofp(size, FLOAT)

    def of_row(row: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        start = builder.mul(row, size)
        x, out = (at(builder, array, start, ELEMENTS[kind]) for array in (inputs, outputs))

        def squares(place: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
            value = read(builder, x, place, kind, lanes)
            return [builder.call(fused, [value, value, sums[0]])]

        (total,) = loop(builder, integer(0), size, lanes, squares, [zeros(lanes)])
        mean = builder.fadd(builder.fdiv(sum_of_lanes(builder, total), count), epsilon)
        scale = broadcast(builder, builder.fdiv(ir.Constant(FLOAT, 1.0), builder.call(sqrt, [mean])), lanes)

        def products(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            normalized = builder.fmul(read(builder, x, place, kind, lanes), scale)
            factor = read(builder, weight, place, kind, lanes)
            write(builder, out, place, builder.fmul(rounded(builder, normalized, kind), factor), kind)
            return ()

        loop(builder, integer(0), size, lanes, products)
        return ()

    loop(builder, work.first, work.last, 1, of_row)
    return work.finish()
