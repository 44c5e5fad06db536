"""The program for rotary position embeddings, for LLVM: see ``rotary``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import WorkFunction, at, integer, loop
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
    """LLVM IR of ``rotary``, a ``WorkFunction`` without scratch.

    Both products of each number are rounded to ``kind``, and so is their sum.
    """
    work = WorkFunction(ir.Module("rotary"), "rotary", RotaryFields._fields)
    builder = work.builder
    values, outputs, cosines, sines = work.addresses("values", "outputs", "cosines", "sines")
    heads, half, period = work.numbers("heads", "half", "period")
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

    loop(builder, work.first, work.last, 1, of_row)
    return work.finish()
