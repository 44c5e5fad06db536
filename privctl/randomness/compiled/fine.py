"""Pairs of deviates in double precision from their two leading words, with a bound on the effect of further bits.

A word fixes the angle within pi 2^-32 of the middle of its cell, and U within 2^-32, so the radius within
2^-32 / (U R). Logarithm, sine and cosine are Taylor series with relative errors below 2^-43. So if U is at least 2^-23
away from 0 and 1, each deviate is within 2^-30 (0.8 R + 0.26 / (U R)) of the ideal one, and of the one that
``deviates.float64_deviates`` computes. The excess of 0.8 over pi / 4 and of 0.26 over 1 / 4 covers all rounding, and
the change of U and R within their cell, which is less than 2^-8 of each.
"""

from __future__ import annotations

import math

from llvmlite import ir

from privctl.machine_code.building import store
from privctl.randomness.compiled.lanes import DOUBLE, LANES, POINTER, Lanes, polynomial
from privctl.randomness.compiled.memory import broadcast, loop, words

#: Pairs with U this close to 0 or 1 are left to ``deviates``.
EDGE = 2.0**-23
#: Coefficients of the error bound: of R, from the angle, and of 1 / (U R), from the radius.
OF_ANGLE, OF_RADIUS = 0.8 * 2.0**-30, 0.26 * 2.0**-30

#: The words of the float32 nearest to sqrt(1/2), where the range of mantissas begins, and of 1.
ROOT_HALF, _ONE = 0x3F3504F3, 0x3F800000
#: Coefficients, highest power first, of (sin x / x - 1) / x^2, (cos x - 1) / x^2 and artanh(s) / s, in x^2 and s^2.
_SINE = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(6, 0, -1))
_COSINE = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(7, 0, -1))
_ARTANH = tuple(1 / (2 * k + 1) for k in range(7, -1, -1))


def define(module: ir.Module) -> ir.Function:
    """Define ``fine(first, second, cosines, sines, errors, factor, groups)``: deviates and error bounds in float64.

    ``factor`` is -2 stddev^2. The error bound is infinite if U is within ``EDGE`` of 0 or 1.
    """
    arguments = [POINTER] * 5 + [ir.DoubleType(), ir.IntType(64)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "fine")
    first, second, cosines, sines, errors, factor, groups = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    scale = broadcast(builder, factor)

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
    """The middle of U's cell, exactly, and its binary exponent relative to sqrt(1/2)."""
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
    # Bit 1 of the quarter's number is the sign of the sine, bit 1 of the next number that of the cosine.
    negative = ((quarters + 1) & 2).differs(0), (quarters & 2).differs(0)
    return negative[0].choose(across * -1.0, across), negative[1].choose(along * -1.0, along)
