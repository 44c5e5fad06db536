"""Pairs of deviates in double precision, from their first 64 bits alone, with a bound on what more bits would change.

A word fixes the angle within pi 2^-32 of the middle of its cell, and U within 2^-32, so the radius within
2^-32 / (U R). Logarithm, sine and cosine are Taylor series that err relatively by less than 2^-43. So where U is 2^-23
or farther from 0 and 1, each deviate is within 2^-30 (0.8 R + 0.26 / (U R)) of the ideal one, and of the one that
``deviates.float64_deviates`` computes. What 0.8 and 0.26 exceed pi / 4 and 1 / 4 by covers all rounding, and how much U
and R change within their cell, which is less than 2^-8 of each.
"""

from __future__ import annotations

import math

from llvmlite import ir

from privctl.randomness.compiled.lanes import DOUBLE, LANES, POINTER, Lanes, polynomial
from privctl.randomness.compiled.memory import loop, spread, store, words

#: U this close to 0 or 1 is left to ``deviates``.
EDGE = 2.0**-23
#: The bound's two terms, for the radius and for its inverse.
OF_ANGLE, OF_RADIUS = 0.8 * 2.0**-30, 0.26 * 2.0**-30

#: The words of the float32 nearest to sqrt(1/2), from which on mantissas are taken, and of 1.
ROOT_HALF, _ONE = 0x3F3504F3, 0x3F800000
#: The highest powers first: of sin x / x - 1 and of cos x - 1, over x^2, and of artanh s / s; in x^2 and s^2.
_SINE = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(6, 0, -1))
_COSINE = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(7, 0, -1))
_ARTANH = tuple(1 / (2 * k + 1) for k in range(7, -1, -1))


def define(module: ir.Module) -> ir.Function:
    """``fine(first, second, cosines, sines, errors, factor, groups)``: deviates and their bounds, as float64.

    ``factor`` is -2 stddev^2. The bound is infinite where U is within ``EDGE`` of 0 or 1.
    """
    arguments = [POINTER] * 5 + [ir.DoubleType(), ir.IntType(64)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "fine")
    first, second, cosines, sines, errors, factor, groups = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    scale = spread(builder, factor)

    def body(place: ir.Value) -> None:
        u, exponent = _uniform(words(builder, first, place))
        radius = (_log(u, exponent) * scale).sqrt()
        cosine, sine = _waves(words(builder, second, place))
        store(builder, cosines, place, (cosine * radius).value)
        store(builder, sines, place, (sine * radius).value)
        error = radius * OF_ANGLE + scale * (-0.5 * OF_RADIUS) / (u * radius)
        at_edge = u.less(EDGE) | (1.0 - u).less(EDGE)
        store(
            builder, errors, place, at_edge.choose(Lanes(builder, ir.Constant(DOUBLE, [math.inf] * LANES)), error).value
        )

    loop(builder, groups, body)
    builder.ret_void()
    return function


def _uniform(first: Lanes) -> tuple[Lanes, Lanes]:
    """The middle of U's cell, without error, and the power of two that takes it near 1."""
    cell = first ^ (first >> 31)
    exponent = (cell.to_float().times_plus(2.0**-31, 2.0**-32).bits() - ROOT_HALF) >> 23
    return cell.to_double().times_plus(2.0**-31, 2.0**-32), exponent


def _log(u: Lanes, exponent: Lanes) -> Lanes:
    mantissa = u * (_ONE - (exponent << 23)).floats().to_double()
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    return exponent.to_double().times_plus(math.log(2), polynomial(ratio * ratio, _ARTANH) * ratio * 2.0)


def _waves(second: Lanes) -> tuple[Lanes, Lanes]:
    """Cosine and sine of the middle of the angle's cell."""
    quarters = (second + (1 << 29)) >> 30
    angle = (second - (quarters << 30)).to_double().times_plus(math.pi * 2.0**-31, math.pi * 2.0**-32)
    square = angle * angle
    sine = (polynomial(square, _SINE) * square).times_plus(angle, angle)
    cosine = polynomial(square, _COSINE).times_plus(square, 1.0)
    swapped = (quarters & 1).differs(0)
    across, along = swapped.choose(sine, cosine), swapped.choose(cosine, sine)
    # Bit 1 of the quarters is the sign of the sine, bit 1 of the next one that of the cosine.
    negative = ((quarters + 1) & 2).differs(0), (quarters & 2).differs(0)
    return negative[0].choose(across * -1.0, across), negative[1].choose(along * -1.0, along)
