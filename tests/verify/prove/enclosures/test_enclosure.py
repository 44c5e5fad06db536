"""Enclosures: the true value lies inside, they are tight, and a rounding that went inward is caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest
from flint import arb

from verify.prove.enclosures import enclosure, functions
from verify.prove.enclosures.enclosure import Interval, Rational, ball, below, bracket, decimal, enclose


def phi(x: Rational) -> Interval:
    return enclose(lambda: functions.normal_cdf(ball(x)))


mpmath.mp.dps = 50

FUNCTIONS: list[tuple[Callable[[Fraction], Interval], Callable[[mpmath.mpf], mpmath.mpf], float, float]] = [
    (phi, mpmath.ncdf, -30, 30),
    (functions.exp, mpmath.exp, -60, 60),
    (functions.log, mpmath.log, 1e-9, 1e9),
]


def exact(value: mpmath.mpf) -> Fraction:
    """An mpmath number is a dyadic rational."""
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def misses() -> list[str]:
    """Random arguments whose true value, to 50 digits, is not in the enclosure."""
    rng, found = random.Random(5), []
    for enclosed, reference, low, high in FUNCTIONS:
        for _ in range(200):
            x = Fraction(rng.uniform(low, high))
            true = exact(reference(mpmath.mpf(x.numerator) / x.denominator))
            slack = abs(true) / 10**45  # what 50 digits leave open
            box = enclosed(x)
            if not (box.low - slack <= true <= box.high + slack):
                found.append(f"{reference.__name__}({float(x)})")
            assert box.high - box.low <= abs(true) / 10**22 + Fraction(1, 10**60), "not tight"
    return found


def test_the_true_value_lies_inside() -> None:
    assert misses() == []


def test_a_planted_inward_rounding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    outward = enclosure._dyadic
    monkeypatch.setattr(enclosure, "_dyadic", lambda end, bits, *, up: outward(end, bits, up=not up))
    with pytest.raises(ValueError, match="swapped"):
        misses()


def test_a_planted_high_end_that_rounds_down_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    down = enclosure._dyadic

    def both_down(end: arb, bits: int, *, up: bool) -> Fraction:
        return down(end, bits, up=False)

    monkeypatch.setattr(enclosure, "_dyadic", both_down)
    assert len(misses()) > 500


@pytest.mark.parametrize("x", [-7, Fraction(-1, 3), 0, Fraction(1, 7), 5, 1000])
def test_rationals_are_enclosed_on_both_sides_of_zero(x: Fraction) -> None:
    assert x in enclose(lambda: ball(x))


def test_tiny_numbers_are_clamped_and_do_not_hang() -> None:
    box = phi(-100_000)  # about 2^-7e9
    assert box == Interval(low=Fraction(0), high=Fraction(1, 2**300))
    negative = enclose(lambda: -(ball(2) ** -5000))
    assert negative == Interval(low=Fraction(-1, 2**300), high=Fraction(0))


def test_a_number_that_never_settles_is_refused() -> None:
    with pytest.raises(ValueError, match="stays unknown"):
        enclose(lambda: arb(1, 0.5))
    with pytest.raises(ValueError, match="no claim is that large"):
        functions.exp(10**9)


def test_precision_is_raised_where_digits_cancel() -> None:
    # 1 - cos(2^-150) is about 2^-301: 200 bits see nothing of it.
    box = enclose(lambda: (1 - (arb(2) ** -140).cos()) * arb(2) ** 281)
    assert 1 - Fraction(1, 10**20) < box.low <= box.high < 1 + Fraction(1, 10**20)


def test_comparisons_know_three_answers() -> None:
    box = Interval(low=Fraction(1), high=Fraction(2))
    assert (below(box, 2), below(box, Fraction(1, 2)), below(box, Fraction(3, 2))) == (True, False, None)


def test_a_bracket_holds_the_root() -> None:
    root = bracket(lambda x: x * x >= 2, Fraction(0), Fraction(2), 12)
    assert root.low**2 < 2 <= root.high**2
    assert root.high - root.low < Fraction(2, 10**12)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(1000), "1000"),
        (Fraction(1, 10**6), "1e-6"),
        (Fraction(1001, 10**8), "1.001e-5"),
        (Fraction(-1, 3), "-0.333333333333"),
        (Fraction(10) ** 400, "1e400"),
        (Fraction(1, 10**500), "1e-500"),
        (Fraction(1, 4), "0.25"),
    ],
)
def test_numbers_are_shown_beyond_floats(value: Fraction, text: str) -> None:
    assert decimal(value) == text
