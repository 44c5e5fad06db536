"""LLVM vector arithmetic written as Python expressions."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from privctl.randomness.compiled.release import GROUP

#: One register of AVX-512, two of AVX2, four of SSE and NEON.
LANES = GROUP

FLOAT = ir.VectorType(ir.FloatType(), LANES)
DOUBLE = ir.VectorType(ir.DoubleType(), LANES)
INT = ir.VectorType(ir.IntType(32), LANES)
BYTE = ir.VectorType(ir.IntType(8), LANES)
SHORT = ir.VectorType(ir.IntType(16), LANES)
HALF = ir.VectorType(ir.HalfType(), LANES)
#: An untyped pointer; loads and stores state the element type.
POINTER = ir.PointerType()
#: Suffixes of the names of LLVM's intrinsic functions.
_SUFFIXES = {FLOAT: "f32", DOUBLE: "f64", INT: "i32"}


class Lanes:
    """A vector of ``LANES`` float32, float64 or int32 numbers, or of comparison results; scalar operands broadcast."""

    def __init__(self, builder: ir.IRBuilder, value: Any) -> None:
        self.builder, self.value = builder, value

    def _with_value(self, value: Any) -> Lanes:
        return Lanes(self.builder, value)

    def _other_value(self, other: Lanes | float) -> Any:
        return other.value if isinstance(other, Lanes) else ir.Constant(self.value.type, [other] * LANES)

    @property
    def _is_floating(self) -> bool:
        return bool(self.value.type in (FLOAT, DOUBLE))

    def _call(self, name: str, *others: Lanes | float) -> Lanes:
        kind = self.value.type
        full = f"llvm.{name}.v{LANES}{_SUFFIXES[kind]}"
        function = self.builder.module.globals.get(full)
        if function is None:
            function = ir.Function(self.builder.module, ir.FunctionType(kind, [kind] * (1 + len(others))), full)
        return self._with_value(self.builder.call(function, [self.value, *map(self._other_value, others)]))

    def __add__(self, other: Lanes | float) -> Lanes:
        add = self.builder.fadd if self._is_floating else self.builder.add
        return self._with_value(add(self.value, self._other_value(other)))

    def __sub__(self, other: Lanes | float) -> Lanes:
        subtract = self.builder.fsub if self._is_floating else self.builder.sub
        return self._with_value(subtract(self.value, self._other_value(other)))

    def __rsub__(self, other: float) -> Lanes:
        return self._with_value(self._other_value(other)) - self

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._with_value(self.builder.fmul(self.value, self._other_value(other)))

    def __truediv__(self, other: Lanes) -> Lanes:
        return self._with_value(self.builder.fdiv(self.value, other.value))

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._with_value(self.builder.and_(self.value, self._other_value(other)))

    def __or__(self, other: Lanes) -> Lanes:
        return self._with_value(self.builder.or_(self.value, other.value))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self._with_value(self.builder.xor(self.value, self._other_value(other)))

    def __lshift__(self, bits: int) -> Lanes:
        return self._with_value(self.builder.shl(self.value, self._other_value(bits)))

    def __rshift__(self, bits: int) -> Lanes:
        """Arithmetic right shift, which repeats the sign bit."""
        return self._with_value(self.builder.ashr(self.value, self._other_value(bits)))

    def logical_shift(self, bits: int) -> Lanes:
        """Logical right shift, which shifts zeros in."""
        return self._with_value(self.builder.lshr(self.value, self._other_value(bits)))

    def times_plus(self, factor: Lanes | float, term: Lanes | float) -> Lanes:
        """``self * factor + term``, rounded once or twice, whichever is faster."""
        return self._call("fmuladd", factor, term)

    def sqrt(self) -> Lanes:
        """Correctly rounded square roots."""
        return self._call("sqrt")

    def rint(self) -> Lanes:
        """Nearest integers, ties to even."""
        return self._call("rint")

    def abs(self) -> Lanes:
        """Absolute values."""
        return self._call("fabs")

    def largest(self, other: Lanes) -> Lanes:
        """Elementwise maximum of unsigned integers."""
        return self._call("umax", other)

    def less(self, other: Lanes | float) -> Lanes:
        """Where ``self`` is less than ``other``; false for NaN."""
        return self._with_value(self.builder.fcmp_ordered("<", self.value, self._other_value(other)))

    def differs(self, other: int) -> Lanes:
        """Where integers differ from ``other``."""
        return self._with_value(self.builder.icmp_signed("!=", self.value, self._other_value(other)))

    def choose(self, yes: Lanes, no: Lanes) -> Lanes:
        """``yes`` where this comparison is true, else ``no``."""
        return self._with_value(self.builder.select(self.value, yes.value, no.value))

    def to_float(self) -> Lanes:
        """Signed integers, or float64, converted to float32, rounding to nearest."""
        convert = self.builder.fptrunc if self._is_floating else self.builder.sitofp
        return self._with_value(convert(self.value, FLOAT))

    def to_double(self) -> Lanes:
        """Signed integers, or float32, converted to float64."""
        convert = self.builder.fpext if self._is_floating else self.builder.sitofp
        return self._with_value(convert(self.value, DOUBLE))

    def negation(self) -> Lanes:
        """The negation of this comparison."""
        return self._with_value(self.builder.not_(self.value))

    def any(self) -> Any:
        """Whether this comparison is true in any lane, as an LLVM ``i1``."""
        name, kind = f"llvm.vector.reduce.or.v{LANES}i1", self.value.type
        function = self.builder.module.globals.get(name)
        if function is None:
            function = ir.Function(self.builder.module, ir.FunctionType(kind.element, [kind]), name)
        return self.builder.call(function, [self.value])

    def bits(self) -> Lanes:
        """The bit patterns of float32 numbers, as int32."""
        return self._with_value(self.builder.bitcast(self.value, INT))

    def floats(self) -> Lanes:
        """The float32 numbers with these bit patterns."""
        return self._with_value(self.builder.bitcast(self.value, FLOAT))


def polynomial(x: Lanes, coefficients: tuple[float, ...]) -> Lanes:
    """The polynomial at ``x`` by Horner's rule; ``coefficients`` begin with the highest power."""
    total = x.times_plus(coefficients[0], coefficients[1])
    for coefficient in coefficients[2:]:
        total = total.times_plus(x, coefficient)
    return total
