"""The program for gradients of LayerNorm and RMSNorm, for LLVM: see ``norm_code``."""

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
    load,
    loop,
    multiply_add,
    store,
    sum_of_lanes,
    vector,
    zeros,
)


class NormFields(NamedTuple):
    """The part of the array of work after its header.

    ``inputs`` and ``gradients`` are the addresses of tensors (n, T, d) of float32 numbers, each with the distance of
    two examples and of two positions in numbers. d, ``size``, is a multiple of the lanes. ``epsilon`` has the bits of a
    float64 number, and ``centred`` is 1 for LayerNorm and 0 for RMSNorm. ``weights`` and ``biases`` are the addresses
    of tensors (n, d), zero at first, to which the sums over positions are added.
    """

    inputs: int
    of_examples: int
    of_positions: int
    gradients: int
    gradients_of_examples: int
    gradients_of_positions: int
    positions: int
    size: int
    epsilon: int
    centred: int
    weights: int
    biases: int


def assembly(lanes: int) -> str:
    """LLVM IR of ``sums``, a ``WorkFunction`` without scratch."""
    module = ir.Module("norm")
    work = WorkFunction(module, "sums", NormFields._fields)
    builder, fused, kind = work.builder, multiply_add(module, lanes), vector(lanes)
    sqrt = ir.Function(module, ir.FunctionType(FLOAT, [FLOAT]), "llvm.sqrt.f32")
    inputs, gradients, weights, biases = work.addresses("inputs", "gradients", "weights", "biases")
    positions, size = work.numbers("positions", "size")
    strides = work.numbers("of_examples", "of_positions")
    gradient_strides = work.numbers("gradients_of_examples", "gradients_of_positions")
    epsilon = builder.fptrunc(work.number("epsilon", DOUBLE), FLOAT)
    count = builder.uitofp(size, FLOAT)
    averaged = builder.mul(size, work.number("centred"))

    def row(array: ir.Value, steps: Sequence[ir.Value], example: ir.Value, position: ir.Value) -> ir.Value:
        return at(builder, array, builder.add(*map(builder.mul, steps, (example, position))), FLOAT)

    def of_example(example: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        totals = [at(builder, each, builder.mul(example, size), FLOAT) for each in (weights, biases)]

        def of_position(position: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            x = row(inputs, strides, example, position)
            g = row(gradients, gradient_strides, example, position)

            def values(place: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
                return [builder.fadd(carried[0], load(builder, x, place, kind))]

            (total,) = loop(builder, integer(0), averaged, lanes, values, [zeros(lanes)])
            mean = broadcast(builder, builder.fdiv(sum_of_lanes(builder, total), count), lanes)

            def squares(place: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
                deviation = builder.fsub(load(builder, x, place, kind), mean)
                return [builder.call(fused, [deviation, deviation, carried[0]])]

            (total,) = loop(builder, integer(0), size, lanes, squares, [zeros(lanes)])
            variance = builder.fadd(builder.fdiv(sum_of_lanes(builder, total), count), epsilon)
            inverse = builder.fdiv(ir.Constant(FLOAT, 1.0), builder.call(sqrt, [variance]))
            scale = broadcast(builder, inverse, lanes)

            def products(place: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
                gradient = load(builder, g, place, kind)
                normalized = builder.fmul(builder.fsub(load(builder, x, place, kind), mean), scale)
                weight, bias = (load(builder, total, place, kind) for total in totals)
                store(builder, totals[0], place, builder.call(fused, [normalized, gradient, weight]))
                store(builder, totals[1], place, builder.fadd(bias, gradient))
                return ()

            loop(builder, integer(0), size, lanes, products)
            return ()

        loop(builder, integer(0), positions, 1, of_position)
        return ()

    loop(builder, work.first, work.last, 1, of_example)
    return work.finish()
