"""The programs for RMSNorm and LayerNorm, for LLVM: see ``norm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
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

#: Sums of a row at once: a processor begins an addition before the one before it ends.
_SUMS = 4


class RowNormFields(NamedTuple):
    """The part of the array of work after its header.

    ``inputs`` (rows, size), ``weight`` and ``bias`` (size,) and ``outputs`` (rows, size) are addresses of contiguous
    numbers of one kind; RMSNorm reads no bias. ``size`` is a multiple of the lanes, and ``epsilon`` has the bits of a
    float64 number.
    """

    inputs: int
    weight: int
    bias: int
    outputs: int
    size: int
    epsilon: int


def assembly(kind: str, lanes: int, *, centred: bool) -> str:
    """LLVM IR of ``norm``, a ``WorkFunction`` without scratch: of LayerNorm if it is ``centred``, else of RMSNorm.

    RMSNorm rounds the normalized row to ``kind``, and then its product with the weight. LayerNorm rounds the result.
    """
    module = ir.Module("norm")
    work = WorkFunction(module, "norm", RowNormFields._fields)
    builder, fused = work.builder, multiply_add(module, lanes)
    sqrt = ir.Function(module, ir.FunctionType(FLOAT, [FLOAT]), "llvm.sqrt.f32")
    inputs, weight, bias, outputs = work.addresses("inputs", "weight", "bias", "outputs")
    size = work.number("size")
    epsilon = builder.fptrunc(work.number("epsilon", DOUBLE), FLOAT)
    count = builder.uitofp(size, FLOAT)
    most = builder.sub(size, builder.urem(size, integer(_SUMS * lanes)))

    def of_row(row: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        start = builder.mul(row, size)
        x, out = (at(builder, array, start, ELEMENTS[kind]) for array in (inputs, outputs))

        def mean_of(add: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
            """The mean over the row of what ``add`` adds, at each place, to the sums so far."""

            def several(place: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
                return [add(builder.add(place, integer(i * lanes)), each) for i, each in enumerate(sums)]

            sums = loop(builder, integer(0), most, _SUMS * lanes, several, [zeros(lanes)] * _SUMS)
            sums = [*loop(builder, most, size, lanes, several, sums[:1]), *sums[1:]]
            return builder.fdiv(sum_of_lanes(builder, reduce(builder.fadd, sums)), count)

        mean = None
        if centred:
            total = mean_of(lambda place, so_far: builder.fadd(so_far, read(builder, x, place, kind, lanes)))
            mean = broadcast(builder, total, lanes)

        def deviation(place: ir.Value) -> ir.Value:
            value = read(builder, x, place, kind, lanes)
            return value if mean is None else builder.fsub(value, mean)

        def squares(place: ir.Value, so_far: ir.Value) -> ir.Value:
            value = deviation(place)
            return builder.call(fused, [value, value, so_far])

        root = builder.call(sqrt, [builder.fadd(mean_of(squares), epsilon)])
        scale = broadcast(builder, builder.fdiv(ir.Constant(FLOAT, 1.0), root), lanes)

        def results(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            normalized = builder.fmul(deviation(place), scale)
            factor = read(builder, weight, place, kind, lanes)
            if centred:
                result = builder.call(fused, [normalized, factor, read(builder, bias, place, kind, lanes)])
            else:
                result = builder.fmul(rounded(builder, normalized, kind), factor)
            write(builder, out, place, result, kind)
            return ()

        loop(builder, integer(0), size, lanes, results)
        return ()

    loop(builder, work.first, work.last, 1, of_row)
    return work.finish()
