"""The program for RMSNorm's forward pass, for LLVM: see ``rms_norm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import (
    FLOAT,
    INT,
    POINTER,
    at,
    broadcast,
    define_share,
    field,
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
    """LLVM IR of ``norm(work, first, last, scratch)``, without scratch, and of ``share``; see ``define_share``.

    The normalized row is rounded to ``kind``, and so is its product with the weight.
    """
    module = ir.Module("rms_norm")
    define_share(module, _norm(module, kind, lanes))
    return str(module)


def _norm(module: ir.Module, kind: str, lanes: int) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, INT, INT, POINTER]), "norm")
    work, first, last, _ = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    fused = multiply_add(module, lanes)
    sqrt = ir.Function(module, ir.FunctionType(FLOAT, [FLOAT]), "llvm.sqrt.f32")

    def number(name: str, of: ir.Type = INT) -> ir.Value:
        return field(builder, work, name, RmsNormFields._fields, of)

    inputs, weight, outputs = (number(name, POINTER) for name in ("inputs", "weight", "outputs"))
    size = number("size")
    epsilon = builder.fptrunc(number("epsilon", ir.DoubleType()), FLOAT)
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

    loop(builder, first, last, 1, of_row)
    builder.ret_void()
    return function
