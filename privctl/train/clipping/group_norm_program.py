"""The program for gradients of GroupNorm, for LLVM: see ``group_norm_code``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import (
    DOUBLE,
    FLOAT,
    Body,
    WorkFunction,
    at,
    broadcast,
    integer,
    load,
    loop,
    multiply_add,
    sum_of_lanes,
    vector,
    zeros,
)

#: Additions in float32 to each lane before the sum goes on in float64.
_SHORT_SUM = 64


class GroupNormFields(NamedTuple):
    """The part of the array of work after its header.

    ``inputs`` and ``gradients`` are the addresses of contiguous tensors (n, channels, size) of float32 numbers, with
    ``groups`` of channels that are normalized together. ``size`` is a multiple of the lanes, and ``epsilon`` has the
    bits of a float64 number. The results go to ``weights`` and ``biases``, the addresses of tensors (n, channels).
    """

    inputs: int
    gradients: int
    channels: int
    size: int
    groups: int
    epsilon: int
    weights: int
    biases: int


def assembly(lanes: int) -> str:
    """LLVM IR of ``sums``, a ``WorkFunction`` without scratch."""
    module = ir.Module("group_norm")
    work = WorkFunction(module, "sums", GroupNormFields._fields)
    builder, fused, kind = work.builder, multiply_add(module, lanes), vector(lanes)
    sqrt = ir.Function(module, ir.FunctionType(DOUBLE, [DOUBLE]), "llvm.sqrt.f64")
    inputs, gradients, weights, biases = work.addresses("inputs", "gradients", "weights", "biases")
    channels, size, groups = work.numbers("channels", "size", "groups")
    epsilon = work.number("epsilon", DOUBLE)
    together = builder.udiv(channels, groups)
    in_group = builder.mul(together, size)
    count = builder.uitofp(in_group, DOUBLE)

    def summed(values: int, length: ir.Value, add: Body) -> list[ir.Value]:
        """Float64 sums of this many ``values`` over ``length`` places, to which ``add`` adds those of each."""

        def of_part(start: ir.Value, totals: Sequence[ir.Value]) -> Sequence[ir.Value]:
            end = builder.add(start, integer(_SHORT_SUM * lanes))
            end = builder.select(builder.icmp_unsigned("<", end, length), end, length)
            short = loop(builder, start, end, lanes, add, [zeros(lanes)] * values)
            sums = [builder.fpext(sum_of_lanes(builder, each), DOUBLE) for each in short]
            return [builder.fadd(*pair) for pair in zip(totals, sums, strict=True)]

        none = [ir.Constant(DOUBLE, 0.0)] * values
        return loop(builder, integer(0), length, _SHORT_SUM * lanes, of_part, none)

    def of_group(group: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        x, g = (at(builder, array, builder.mul(group, in_group), FLOAT) for array in (inputs, gradients))
        (total,) = summed(1, in_group, lambda place, sums: [builder.fadd(sums[0], load(builder, x, place, kind))])
        exact_mean = builder.fdiv(total, count)
        rounded_mean = builder.fptrunc(exact_mean, FLOAT)
        rest_of_mean = builder.fsub(exact_mean, builder.fpext(rounded_mean, DOUBLE))
        mean = broadcast(builder, rounded_mean, lanes)

        def deviation(array: ir.Value, place: ir.Value) -> ir.Value:
            return builder.fsub(load(builder, array, place, kind), mean)

        def squares(place: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
            return [builder.call(fused, [deviation(x, place), deviation(x, place), sums[0]])]

        (total,) = summed(1, in_group, squares)
        around_mean = builder.fsub(builder.fdiv(total, count), builder.fmul(rest_of_mean, rest_of_mean))
        variance = builder.fadd(around_mean, epsilon)
        scale = builder.fdiv(ir.Constant(DOUBLE, 1.0), builder.call(sqrt, [variance]))

        def of_channel(channel: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            own, own_gradient = (at(builder, array, builder.mul(channel, size), FLOAT) for array in (x, g))

            def products(place: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
                gradient = load(builder, own_gradient, place, kind)
                return [
                    builder.call(fused, [deviation(own, place), gradient, sums[0]]),
                    builder.fadd(sums[1], gradient),
                ]

            weight, bias = summed(2, size, products)
            weight = builder.fsub(weight, builder.fmul(rest_of_mean, bias))
            place = builder.add(builder.mul(group, together), channel)
            for array, value in ((weights, builder.fmul(weight, scale)), (biases, bias)):
                builder.store(builder.fptrunc(value, FLOAT), at(builder, array, place, FLOAT))
            return ()

        loop(builder, integer(0), together, 1, of_channel)
        return ()

    loop(builder, builder.mul(work.first, groups), builder.mul(work.last, groups), 1, of_group)
    return work.finish()
