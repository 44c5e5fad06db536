"""The program for activations that are looked up, for LLVM: see ``lookup``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import POINTER, WorkFunction, load, loop, store, vector
from privctl.models.fused.numbers import ELEMENTS, read, splat, write

_SHORT, _WORD = ELEMENTS["BF16"], ir.IntType(32)


class LookupFields(NamedTuple):
    """The part of the array of work after its header.

    ``results`` is the address of a bfloat16 number for each pattern of bits and one more; ``numbers``, ``others`` and
    ``outputs`` are those of contiguous bfloat16 numbers (rows, size). ``size`` is a multiple of the lanes.
    """

    results: int
    numbers: int
    others: int
    outputs: int
    size: int


def assembly(lanes: int, *, gated: bool) -> str:
    """LLVM IR of ``lookup``, a ``WorkFunction`` without scratch.

    If it is ``gated``, results are multiplied by ``others``, which are not read otherwise.
    """
    module = ir.Module("lookup")
    work = WorkFunction(module, "lookup", LookupFields._fields)
    builder, gather = work.builder, _gathering(module, lanes)
    results, numbers, others, outputs = work.addresses("results", "numbers", "others", "outputs")
    size = work.number("size")

    def of_place(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        bits = builder.zext(load(builder, numbers, place, ir.VectorType(_SHORT, lanes)), splat(0, lanes).type)
        found = gather(builder, results, bits)
        if gated:
            wide = builder.bitcast(builder.shl(found, splat(16, lanes)), vector(lanes))
            product = builder.fmul(wide, read(builder, others, place, "BF16", lanes))
            write(builder, outputs, place, product, "BF16")
        else:
            store(builder, outputs, place, builder.trunc(found, ir.VectorType(_SHORT, lanes)))
        return ()

    loop(builder, builder.mul(work.first, size), builder.mul(work.last, size), lanes, of_place)
    return work.finish()


def _gathering(module: ir.Module, lanes: int) -> Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]:
    """What emits the reading of words, at these ``places`` of an array of bfloat16 numbers: two numbers each."""
    words, addresses, bits = (ir.VectorType(kind, lanes) for kind in (_WORD, POINTER, ir.IntType(1)))
    kind = ir.FunctionType(words, [addresses, _WORD, bits, words])
    function = ir.Function(module, kind, f"llvm.masked.gather.v{lanes}i32.v{lanes}p0")
    alignment, every, nothing = ir.Constant(_WORD, 1), ir.Constant(bits, [1] * lanes), ir.Constant(words, ir.Undefined)

    def emit(builder: ir.IRBuilder, array: ir.Value, places: ir.Value) -> ir.Value:
        address = builder.gep(array, [places], source_etype=_SHORT)
        address.type = addresses  # llvmlite takes it for one address
        return builder.call(function, [address, alignment, every, nothing])

    return emit
