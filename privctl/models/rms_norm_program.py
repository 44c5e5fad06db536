"""The program for RMSNorm's forward pass, for LLVM: see ``rms_norm_code``."""

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
    load,
    loop,
    multiply_add,
    store,
    sum_of_lanes,
    vector,
    zeros,
)

#: The number kinds that can be read and written.
KINDS = ("F32", "BF16")
_SHORT = ir.IntType(16)


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
    stored: ir.Type = FLOAT if kind == "F32" else _SHORT

    def number(name: str, of: ir.Type = INT) -> ir.Value:
        return field(builder, work, name, RmsNormFields._fields, of)

    inputs, weight, outputs = (number(name, POINTER) for name in ("inputs", "weight", "outputs"))
    size = number("size")
    epsilon = builder.fptrunc(number("epsilon", ir.DoubleType()), FLOAT)
    count = builder.uitofp(size, FLOAT)

    def read(array: ir.Value, place: ir.Value) -> ir.Value:
        if kind == "F32":
            return load(builder, array, place, vector(lanes))
        words = builder.zext(load(builder, array, place, ir.VectorType(_SHORT, lanes)), _words(lanes))
        return builder.bitcast(builder.shl(words, _splat(16, lanes)), vector(lanes))

    def of_row(row: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        start = builder.mul(row, size)
        x, out = (at(builder, array, start, stored) for array in (inputs, outputs))

        def squares(place: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
            value = read(x, place)
            return [builder.call(fused, [value, value, sums[0]])]

        (total,) = loop(builder, integer(0), size, lanes, squares, [zeros(lanes)])
        mean = builder.fadd(builder.fdiv(sum_of_lanes(builder, total), count), epsilon)
        scale = broadcast(builder, builder.fdiv(ir.Constant(FLOAT, 1.0), builder.call(sqrt, [mean])), lanes)

        def products(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            normalized = builder.fmul(read(x, place), scale)
            if kind == "F32":
                store(builder, out, place, builder.fmul(normalized, read(weight, place)))
                return ()
            rounded = builder.bitcast(_rounded(builder, normalized), vector(lanes))
            words = _rounded(builder, builder.fmul(rounded, read(weight, place)))
            halves = builder.trunc(builder.lshr(words, _splat(16, lanes)), ir.VectorType(_SHORT, lanes))
            store(builder, out, place, halves)
            return ()

        loop(builder, integer(0), size, lanes, products)
        return ()

    loop(builder, first, last, 1, of_row)
    builder.ret_void()
    return function


def _words(lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(32), lanes)


def _splat(number: int, lanes: int) -> ir.Constant:
    return ir.Constant(_words(lanes), [number] * lanes)


def _rounded(builder: ir.IRBuilder, values: ir.Value) -> ir.Value:
    """The words of ``values`` rounded to bfloat16, ties to even.

    NaN stays NaN, since its payload comes of bfloat16 numbers or is the processor's own: nothing is carried into it.
    """
    lanes = values.type.count
    words = builder.bitcast(values, _words(lanes))
    odd = builder.and_(builder.lshr(words, _splat(16, lanes)), _splat(1, lanes))
    rounded = builder.add(words, builder.add(odd, _splat(0x7FFF, lanes)))
    return builder.and_(rounded, _splat(0xFFFF0000, lanes))
