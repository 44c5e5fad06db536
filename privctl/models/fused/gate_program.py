"""The program for SiLU times another number, for LLVM: see ``gate``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import (
    FLOAT,
    INT,
    POINTER,
    at,
    define_share,
    field,
    integer,
    loop,
    multiply_add,
    vector,
)
from privctl.models.fused.numbers import ELEMENTS, read, rounded, splat, write

#: Below the first, e^x is taken as that of the first, which is subnormal; above the second, it is near infinity.
_LEAST, _MOST = -87.0, 88.0
#: ln 2 in two parts, the first with few significant bits.
_LN2 = (0.693359375, -2.12194440e-4)
#: Coefficients of e^x around 0, highest power first: the Taylor series to x^7.
_EXP = tuple(1 / math.factorial(power) for power in range(7, -1, -1))


class GateFields(NamedTuple):
    """The part of the array of work after its header.

    ``gates`` and ``values`` are addresses of contiguous numbers (rows, size) of one kind, and results replace the
    gates. ``size`` is a multiple of the lanes.
    """

    gates: int
    values: int
    size: int


def assembly(kind: str, lanes: int) -> str:
    """LLVM IR of ``gate(work, first, last, scratch)``, without scratch, and of ``share``; see ``define_share``.

    The SiLU is rounded to ``kind``, and so is the product.
    """
    module = ir.Module("gate")
    define_share(module, _gate(module, kind, lanes))
    return str(module)


def _gate(module: ir.Module, kind: str, lanes: int) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, INT, INT, POINTER]), "gate")
    work, first, last, _ = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    gates, values = (field(builder, work, name, GateFields._fields, POINTER) for name in ("gates", "values"))
    size = field(builder, work, "size", GateFields._fields)

    def of_row(row: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        start = builder.mul(row, size)
        own, other = (at(builder, array, start, ELEMENTS[kind]) for array in (gates, values))

        def of_place(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            x = read(builder, own, place, kind, lanes)
            divisor = builder.fadd(_exponential(module, builder, builder.fneg(x)), _number(1.0, lanes))
            silu = rounded(builder, builder.fdiv(x, divisor), kind)
            write(builder, own, place, builder.fmul(silu, read(builder, other, place, kind, lanes)), kind)
            return ()

        loop(builder, integer(0), size, lanes, of_place)
        return ()

    loop(builder, first, last, 1, of_row)
    builder.ret_void()
    return function


def _exponential(module: ir.Module, builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x, with a relative error below 2^-22 between the bounds of x; NaN stays NaN."""
    lanes = x.type.count
    fused = multiply_add(module, lanes)
    rint = ir.Function(module, ir.FunctionType(x.type, [x.type]), f"llvm.rint.v{lanes}f32")
    inside = x
    for sign, bound in ((">", _LEAST), ("<", _MOST)):  # in this order, a comparison with NaN keeps it
        end = _number(bound, lanes)
        inside = builder.select(builder.fcmp_ordered(sign, end, inside), end, inside)
    power = builder.call(rint, [builder.fmul(inside, _number(1 / math.log(2), lanes))])
    rest = builder.call(fused, [power, _number(-_LN2[0], lanes), inside])
    rest = builder.call(fused, [power, _number(-_LN2[1], lanes), rest])
    total = _number(_EXP[0], lanes)
    for coefficient in _EXP[1:]:
        total = builder.call(fused, [total, rest, _number(coefficient, lanes)])
    words = splat(23, lanes).type
    scale = builder.shl(builder.add(builder.fptosi(power, words), splat(127, lanes)), splat(23, lanes))
    return builder.fmul(total, builder.bitcast(scale, vector(lanes)))


def _number(value: float, lanes: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(FLOAT, lanes), [value] * lanes)
