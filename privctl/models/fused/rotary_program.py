"""The program for rotary position embeddings, for LLVM: see ``rotary``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import INT, POINTER, at, define_share, field, integer, loop
from privctl.models.fused.numbers import ELEMENTS, read, rounded, write


class RotaryFields(NamedTuple):
    """The part of the array of work after its header.

    ``values`` and ``outputs`` are addresses of contiguous numbers (rows, heads, 2 half) of one kind, ``cosines`` and
    ``sines`` of such numbers (period, 2 half), those of row r in row r modulo the period. ``half`` is a multiple of the
    lanes.
    """

    values: int
    outputs: int
    cosines: int
    sines: int
    heads: int
    half: int
    period: int


def assembly(kind: str, lanes: int) -> str:
    """LLVM IR of ``rotary(work, first, last, scratch)``, without scratch, and of ``share``; see ``define_share``.

    Both products of each number are rounded to ``kind``, and so is their sum.
    """
    module = ir.Module("rotary")
    define_share(module, _rotary(module, kind, lanes))
    return str(module)


def _rotary(module: ir.Module, kind: str, lanes: int) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, INT, INT, POINTER]), "rotary")
    work, first, last, _ = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    values, outputs, cosines, sines = (
        field(builder, work, name, RotaryFields._fields, POINTER) for name in RotaryFields._fields[:4]
    )
    heads, half, period = (field(builder, work, name, RotaryFields._fields) for name in RotaryFields._fields[4:])
    size = builder.mul(half, integer(2))

    def of_row(row: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        position = builder.mul(builder.urem(row, period), size)
        turns = [at(builder, array, position, ELEMENTS[kind]) for array in (cosines, sines)]

        def of_head(head: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            start = builder.mul(builder.add(builder.mul(row, heads), head), size)
            own, other = (at(builder, array, start, ELEMENTS[kind]) for array in (values, outputs))

            def of_place(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
                places = place, builder.add(place, half)
                low, high = (read(builder, own, each, kind, lanes) for each in places)
                pairs = zip(places, ((low, builder.fneg(high)), (high, low)), strict=True)
                for each, numbers in pairs:
                    products = [
                        rounded(builder, builder.fmul(number, read(builder, turn, each, kind, lanes)), kind)
                        for number, turn in zip(numbers, turns, strict=True)
                    ]
                    write(builder, other, each, builder.fadd(*products), kind)
                return ()

            loop(builder, integer(0), half, lanes, of_place)
            return ()

        loop(builder, integer(0), heads, 1, of_head)
        return ()

    loop(builder, first, last, 1, of_row)
    builder.ret_void()
    return function
