"""The kernel: deviates, sums and rounding of a block in one pass, compiled by LLVM for this processor.

What ``gridded`` computes in float32 array by array is done here for ``LANES`` pairs at a time, in registers. Pairs that
float32 cannot decide are computed in double precision (``fine``); the few that it cannot decide either are marked and
left unchanged.

Logarithm, sine and cosine are polynomials (Moshier's Cephes) with relative errors below 2^-22. The angle's quadrant is
taken exactly from its word, and U near 1 is measured from 1. So a deviate is within (R + 1) 2^-20 of the ideal one,
where R is the radius of its pair (``release.CLOSE``): the total error of radius and sine is below 2^-20.8 R, and the
bits of U not yet drawn change the radius by at most 2^-32 / (U R), which is below 2^-21 unless U is near 0 or 1
(``LOW``, ``HIGH``).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from llvmlite import ir

from privctl.machine_code.building import at, load, store
from privctl.machine_code.compiling import CompiledModule
from privctl.randomness.compiled import fine
from privctl.randomness.compiled.fine import ROOT_HALF
from privctl.randomness.compiled.lanes import BYTE, DOUBLE, FLOAT, HALF, INT, LANES, POINTER, SHORT, Lanes, polynomial
from privctl.randomness.compiled.memory import broadcast, loop, words

#: Pairs with U below the first of these, or 1 - U below the second, are left to float64.
LOW, HIGH = 2.0**-13, 2.0**-20

_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
#: ln 2 in two parts, the first with few significant bits.
_LN2 = (0.693359375, -2.12194440e-4)
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)

_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64


class MachineCode:
    """The compiled functions of ``assembly`` for one format; thread-safe."""

    def __init__(self, kind: str) -> None:
        """Compile for numbers stored as ``kind``; raises RuntimeError if LLVM cannot compile for this machine."""
        self._module = CompiledModule(assembly(kind))
        function = self._module.function
        self.release: Callable[..., int] = function("release", ctypes.c_uint32, [_ADDRESS] * 7 + [_COUNT])
        self.deviates: Callable[..., None] = function("deviates", None, [_ADDRESS] * 5 + [ctypes.c_float, _COUNT])
        self.fine: Callable[..., None] = function("fine", None, [_ADDRESS] * 5 + [ctypes.c_double, _COUNT])


def assembly(kind: str) -> str:
    """LLVM IR of a module with ``release``, for numbers stored as ``kind``, ``deviates`` and ``fine``."""
    module = ir.Module("noise")
    _release(module, kind, fine.define(module))
    _deviates(module)
    return str(module)


def _deviates(module: ir.Module) -> None:
    """Define ``deviates(first, second, cosines, sines, edge, factor, groups)``, which is used by the self-test.

    ``factor`` is -2 stddev^2; ``edge`` (bytes) marks the pairs left to float64.
    """
    arguments = [POINTER] * 5 + [ir.FloatType(), ir.IntType(64)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "deviates")
    first, second, cosines, sines, edge, factor, groups = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    scale = broadcast(builder, factor)

    def body(place: ir.Value) -> None:
        cosine, sine, _, at_edge = _pair(words(builder, first, place), words(builder, second, place), scale)
        store(builder, cosines, place, cosine.value)
        store(builder, sines, place, sine.value)
        store(builder, edge, place, builder.zext(at_edge.value, BYTE))

    loop(builder, groups, body)
    builder.ret_void()


def _release(module: ir.Module, kind: str, in_double: ir.Function) -> None:
    """Define ``release(head, tail, first, second, doubtful, singles, doubles, groups)``.

    Numbers in ``head`` and ``tail`` are replaced by their sums with the pairs' deviates, on the grid; ``doubtful``
    (bytes) marks the pairs left unchanged. ``singles`` (float32) are -2 stddev^2, the step, 1 / step, 1.5 2^23 steps,
    the tolerated distance of a sum from a multiple of the step, and by how much that decreases per unit of the radius.
    ``doubles`` (float64) are -2 stddev^2, 1.5 2^52 steps, and the tolerated distance before the deviate's error is
    subtracted. Returns the largest bit pattern, without the sign, of the original numbers as float32.
    """
    arguments = [POINTER] * 7 + [ir.IntType(64)]
    function = ir.Function(module, ir.FunctionType(ir.IntType(32), arguments), "release")
    head, tail, first, second, doubtful, singles, doubles, groups = function.args
    builder = ir.IRBuilder(function.append_basic_block())

    def number(array: ir.Value, kind: ir.Type, index: int) -> ir.Value:
        return builder.load(at(builder, array, ir.Constant(ir.IntType(64), index), kind), typ=kind)

    scale, step, inverse, to_steps, near, slope = (
        broadcast(builder, number(singles, ir.FloatType(), index)) for index in range(6)
    )
    fine_scale, fine_to_steps, fine_near = (number(doubles, ir.DoubleType(), index) for index in range(3))
    largest = builder.alloca(INT)
    builder.store(ir.Constant(INT, [0] * LANES), largest)
    deviates = [builder.alloca(DOUBLE) for _ in range(3)]  # for head and tail, and their error bounds

    def split(array: ir.Value, place: ir.Value) -> tuple[Lanes, Lanes, Lanes]:
        """The stored number; the nearest multiple of the step; and the remainder."""
        stored, value = _read_numbers(builder, array, place, kind)
        seen = Lanes(builder, builder.load(largest, typ=INT)).largest(value.bits() & 0x7FFFFFFF)
        builder.store(seen.value, largest)
        multiple = (value * inverse).rint() * step
        return stored, multiple, value - multiple

    def put(place: ir.Value, numbers: list[Lanes], sure: Lanes) -> None:
        for array, number in zip((head, tail), numbers, strict=True):
            store(builder, array, place, number.value)
        store(builder, doubtful, place, builder.zext(sure.negation().value, BYTE))

    def body(place: ir.Value) -> None:
        *noise, radius, at_edge = _pair(words(builder, first, place), words(builder, second, place), scale)
        halves = [split(array, place) for array in (head, tail)]
        near_half = near - radius * slope
        sums = [_rounded(half[1:], drawn, to_steps, near_half) for half, drawn in zip(halves, noise, strict=True)]
        sure = sums[0][1] & sums[1][1] & at_edge.negation()
        kept = [sure.choose(_narrow(total, kind), half[0]) for half, (total, _) in zip(halves, sums, strict=True)]
        put(place, kept, sure)
        with builder.if_then(sure.negation().any(), likely=False):
            pair = [at(builder, array, place, INT.element) for array in (first, second)]
            builder.call(in_double, [*pair, *deviates, fine_scale, ir.Constant(groups.type, 1)])
            *noise, error = (Lanes(builder, builder.load(deviate, typ=DOUBLE)) for deviate in deviates)
            near_half, shift = broadcast(builder, fine_near) - error, broadcast(builder, fine_to_steps)
            sums = [_rounded(half[1:], drawn, shift, near_half) for half, drawn in zip(halves, noise, strict=True)]
            now_sure = sums[0][1] & sums[1][1] & sure.negation()
            both = zip(sums, kept, strict=True)
            put(place, [now_sure.choose(_narrow(total, kind), before) for (total, _), before in both], sure | now_sure)

    loop(builder, groups, body)
    reduction = ir.FunctionType(ir.IntType(32), [INT])
    reduce = ir.Function(module, reduction, f"llvm.vector.reduce.umax.v{LANES}i32")
    builder.ret(builder.call(reduce, [builder.load(largest, typ=INT)]))


def _rounded(parts: tuple[Lanes, Lanes], noise: Lanes, to_steps: Lanes, within: Lanes) -> tuple[Lanes, Lanes]:
    """The multiple of the step nearest to value + ``noise``, as float32, and where it is certain.

    ``parts`` are a multiple of the step and the remainder of the value; the sum is formed in the precision of
    ``noise``.
    """
    multiple, rest = parts
    fine_noise = noise.value.type == DOUBLE
    total = (rest.to_double() if fine_noise else rest) + noise
    nearest = (total + to_steps) - to_steps
    return multiple + (nearest.to_float() if fine_noise else nearest), (total - nearest).abs().less(within)


def _pair(first: Lanes, second: Lanes, scale: Lanes) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """The pairs' deviates, their radii, and where U is too close to 0 or 1; see ``deviates``."""
    cell = first ^ (first >> 31)
    u = cell.to_float().times_plus(2.0**-31, 2.0**-32)
    from_one = (cell ^ 0x7FFFFFFF).to_float().times_plus(2.0**-31, 2.0**-32)
    at_edge = u.less(LOW) | from_one.less(HIGH)
    radius = (_log(u, from_one) * scale).sqrt()
    # The nearest number of quarter turns; the remaining angle is exact.
    quarters = (second + (1 << 29)) >> 30
    angle = (second - (quarters << 30)).to_float() * (math.pi * 2.0**-31)
    square = angle * angle
    sine = polynomial(square, _SINE) * square
    sine = sine.times_plus(angle, angle)
    cosine = polynomial(square, _COSINE) * square
    cosine = cosine.times_plus(square, square.times_plus(-0.5, 1.0))
    swapped = (quarters & 1).differs(0)
    across, along = swapped.choose(sine, cosine), swapped.choose(cosine, sine)
    # Bit 1 of the quarter's number is the sign of the sine, bit 1 of the next number that of the cosine.
    across = (across.bits() ^ (((quarters + 1) & 2) << 30)).floats()
    along = (along.bits() ^ ((quarters & 2) << 30)).floats()
    return across * radius, along * radius, radius, at_edge


def _log(u: Lanes, from_one: Lanes) -> Lanes:
    exponent = (u.bits() - ROOT_HALF) >> 23
    x = exponent.differs(0).choose((u.bits() - (exponent << 23)).floats() - 1.0, from_one * -1.0)
    square, power = x * x, exponent.to_float()
    rest = polynomial(x, _LOG) * x * square
    rest = power.times_plus(_LN2[1], rest)
    rest = square.times_plus(-0.5, rest)
    return power.times_plus(_LN2[0], x + rest)


def _read_numbers(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: str) -> tuple[Lanes, Lanes]:
    """The stored numbers (in the form that ``_narrow`` returns), and their float32 values."""
    if kind == "F32":
        value = Lanes(builder, load(builder, array, place, FLOAT))
        return value, value
    stored = load(builder, array, place, SHORT)
    if kind == "F16":
        value = builder.fpext(builder.bitcast(stored, HALF), FLOAT)
        return Lanes(builder, stored), Lanes(builder, value)
    return Lanes(builder, stored), (Lanes(builder, builder.zext(stored, INT)) << 16).floats()


def _narrow(value: Lanes, kind: str) -> Lanes:
    """Float32 numbers in the stored form, rounded to nearest, ties to even."""
    builder = value.builder
    if kind == "F32":
        return value
    if kind == "F16":
        return Lanes(builder, builder.bitcast(builder.fptrunc(value.value, HALF), SHORT))
    bits = value.bits()
    rounded = (bits + ((bits.logical_shift(16) & 1) + 0x7FFF)).logical_shift(16)
    return Lanes(builder, builder.trunc(rounded.value, SHORT))
