"""Float32 and bfloat16 numbers in programs for LLVM: read as float32, rounded and written as they are stored."""

from __future__ import annotations

from llvmlite import ir

from privctl.machine_code.building import FLOAT, load, store, vector

_SHORT, _WORD = ir.IntType(16), ir.IntType(32)
#: The element type of arrays, by the kind of their numbers.
ELEMENTS: dict[str, ir.Type] = {"F32": FLOAT, "BF16": _SHORT}


def read(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: str, lanes: int) -> ir.Value:
    """The numbers of ``array`` from ``place`` on, as float32."""
    if kind == "F32":
        return load(builder, array, place, vector(lanes))
    words = builder.zext(load(builder, array, place, ir.VectorType(_SHORT, lanes)), ir.VectorType(_WORD, lanes))
    return builder.bitcast(builder.shl(words, splat(16, lanes)), vector(lanes))


def rounded(builder: ir.IRBuilder, values: ir.Value, kind: str) -> ir.Value:
    """Float32 ``values`` rounded to numbers of ``kind``, ties to even.

    NaN stays NaN, since its payload comes of bfloat16 numbers or is the processor's own: nothing is carried into it.
    """
    if kind == "F32":
        return values
    lanes = values.type.count
    words = builder.bitcast(values, ir.VectorType(_WORD, lanes))
    odd = builder.and_(builder.lshr(words, splat(16, lanes)), splat(1, lanes))
    words = builder.add(words, builder.add(odd, splat(0x7FFF, lanes)))
    return builder.bitcast(builder.and_(words, splat(0xFFFF0000, lanes)), values.type)


def write(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, values: ir.Value, kind: str) -> None:
    """Store float32 ``values``, rounded to numbers of ``kind``, into ``array`` from ``place`` on."""
    values = rounded(builder, values, kind)
    if kind == "BF16":
        lanes = values.type.count
        words = builder.bitcast(values, ir.VectorType(_WORD, lanes))
        values = builder.trunc(builder.lshr(words, splat(16, lanes)), ir.VectorType(_SHORT, lanes))
    store(builder, array, place, values)


def splat(number: int, lanes: int) -> ir.Constant:
    """A register with ``number`` as the word of each of its ``lanes``."""
    return ir.Constant(ir.VectorType(_WORD, lanes), [number] * lanes)
