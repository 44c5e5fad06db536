"""The program for SiLU times another number, in float32, for LLVM: see ``gate``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import FLOAT, WorkFunction, load, loop, multiply_add, store, vector
from privctl.models.fused.numbers import splat

#: Below the first, e^x is taken as that of the first, which is subnormal; above the second, it is near infinity.
_LEAST, _MOST = -87.0, 88.0
#: ln 2 in two parts, the first with few significant bits.
_LN2 = (0.693359375, -2.12194440e-4)
#: Coefficients of e^x around 0, highest power first: the Taylor series to x^7.
_EXP = tuple(1 / math.factorial(power) for power in range(7, -1, -1))


class GateFields(NamedTuple):
    """The part of the array of work after its header.

    ``gates`` and ``values`` are addresses of contiguous float32 numbers (rows, size), and results replace the gates.
    ``size`` is a multiple of the lanes.
    """

    gates: int
    values: int
    size: int


def assembly(lanes: int) -> str:
    """LLVM IR of ``gate``, a ``WorkFunction`` without scratch."""
    module = ir.Module("gate")
    work = WorkFunction(module, "gate", GateFields._fields)
    builder, size = work.builder, work.number("size")
    gates, values = work.addresses("gates", "values")

    def of_place(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        x, factor = (load(builder, array, place, vector(lanes)) for array in (gates, values))
        divisor = builder.fadd(_exponential(module, builder, builder.fneg(x)), _number(1.0, lanes))
        store(builder, gates, place, builder.fmul(builder.fdiv(x, divisor), factor))
        return ()

    loop(builder, builder.mul(work.first, size), builder.mul(work.last, size), lanes, of_place)
    return work.finish()


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
