"""Enclosures: two rationals with a real number between them, rounded outwards from a ball."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flint import arb

Rational = Fraction | int

#: The digits to which a point is bracketed, if no other number is asked for.
DIGITS = 15
#: The precision in bits of the first evaluation of a ball, doubled until the ball is tight.
_FIRST_PRECISION = 200
_LAST_PRECISION = 25_600
#: The bits of an enclosure's ends: short enough for a solver, and far more than a claim is stated with.
_BITS = 80
#: Numbers below 2^-300 are only known to be that small, since their exponents may be too large to write down.
_SMALLEST_EXPONENT = -300
_LARGEST_EXPONENT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The closed interval [``low``, ``high``]. Raises ValueError if ``low`` exceeds ``high``."""

    low: Fraction
    high: Fraction

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is {float(self.low)!r}, above high, {float(self.high)!r}; they are swapped")

    def __contains__(self, value: Rational) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        """The midpoint, to twelve digits, and the radius."""
        radius = (self.high - self.low) / 2
        return f"{decimal((self.low + self.high) / 2)} +- {decimal(radius, 1)}" if radius else decimal(self.low)


def decimal(value: Rational, digits: int = 12) -> str:
    """``value`` rounded to ``digits`` significant digits, even if a float would overflow or underflow."""
    from decimal import Context, Decimal

    exact = Fraction(value)
    widest = Context(prec=digits + 10, Emin=-(10**9), Emax=10**9)
    number = Context(prec=digits, Emin=-(10**9), Emax=10**9).plus(
        widest.divide(Decimal(exact.numerator), Decimal(exact.denominator))
    )
    if number and not -4 <= number.adjusted() < 15:
        mantissa, _, exponent = f"{number:e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ball(value: Rational) -> arb:
    """The ball around a rational at the current precision."""
    from flint import arb, fmpq

    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))


def enclose(formula: Callable[[], arb], bits: int = _BITS) -> Interval:
    """An enclosure of the value of ``formula``, whose ends agree to about ``bits`` bits.

    ``formula`` is evaluated with increasing precision until its ball is tight; it must create its balls in each call.
    Numbers within 2^-300 of zero are only known to be that small. Raises ValueError if no precision gives a tight ball,
    or if the number is too large to be written down.
    """
    return enclose_all(lambda: (formula(),), bits)[0]


def enclose_all(formulas: Callable[[], tuple[arb, ...]], bits: int = _BITS) -> tuple[Interval, ...]:
    """Enclosures of several numbers that share computations; see ``enclose``."""
    from flint import ctx

    precision = _FIRST_PRECISION
    while True:
        with ctx.workprec(precision):
            balls = formulas()
            if all(_is_tight(ball, bits) for ball in balls):
                return tuple(rounded_outward(ball, bits) for ball in balls)
        precision *= 2
        if precision > _LAST_PRECISION:
            raise ValueError(f"a number stays unknown at {_LAST_PRECISION} bits: {balls[0].str(10)}")


def below(number: Interval, bound: Rational) -> bool | None:
    """Whether the number is certainly at most ``bound`` (True), certainly above it (False), or neither."""
    if number.high <= bound:
        return True
    return False if number.low > bound else None


def bracket(enough: Callable[[Fraction], bool | None], low: Fraction, high: Fraction, digits: int = DIGITS) -> Interval:
    """The point where ``enough``, which must hold at ``high``, begins to hold, to ``digits`` digits.

    The bracket stays wider if ``enough`` returns None before that.
    """
    while high - low > high / 10**digits:
        middle = _short_fraction((low + high) / 2)
        verdict = enough(middle)
        if verdict is None:
            break
        low, high = (low, middle) if verdict else (middle, high)
    return Interval(low=low, high=high)


def _short_fraction(value: Fraction) -> Fraction:
    """A number near ``value`` with few digits."""
    exponent = value.denominator.bit_length() - value.numerator.bit_length()
    scale = Fraction(2) ** (_BITS + exponent)
    return round(value * scale) / scale


def _is_tight(number: arb, bits: int) -> bool:
    if not number.is_finite():
        return False
    return number.is_zero() or number.rel_accuracy_bits() >= bits or _is_negligible(number)


def _is_negligible(number: arb) -> bool:
    from flint import arb

    return bool(abs(number) < arb(2) ** _SMALLEST_EXPONENT)


def rounded_outward(number: arb, bits: int = _BITS) -> Interval:
    """An enclosure of all numbers in a ball, as tight as the ball."""
    if _is_negligible(number):
        tiny = Fraction(1, 2**-_SMALLEST_EXPONENT)
        return Interval(
            low=Fraction(0) if number >= 0 else -tiny,
            high=Fraction(0) if number <= 0 else tiny,
        )
    return Interval(low=_dyadic(number.lower(), bits, up=False), high=_dyadic(number.upper(), bits, up=True))


def _dyadic(end: arb, bits: int, *, up: bool) -> Fraction:
    """``end``, an exact ball, rounded up or down to ``bits`` bits."""
    mantissa, exponent = (int(part) for part in end.man_exp())
    if exponent > _LARGEST_EXPONENT:
        raise ValueError("a number is above 2^1000000; no claim is that large")
    excess = max(0, mantissa.bit_length() - bits)
    # A right shift rounds towards minus infinity for either sign.
    kept = -((-mantissa) >> excess) if up else mantissa >> excess
    scale = exponent + excess
    return Fraction(kept * 2**scale) if scale >= 0 else Fraction(kept, 2**-scale)
