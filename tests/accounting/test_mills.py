"""Mills' ratio against 30-digit values."""

import math

import pytest

from privctl.accounting.gaussian import mills

# x, sqrt(pi/2) exp(x^2/2) erfc(x/sqrt 2), mpmath at 30 digits
VALUES = [
    (-30, 6.785889613061118725740e195),
    (-25, 1.306518395696447738483e136),
    (-8, 197930788642469.1800200),
    (-2.5, 56.69633145773968231011),
    (-1, 3.477051811703694466926),
    (-0.001, 1.254314764306058973272),
    (0, 1.253314137315500251208),
    (1e-09, 1.253314136315500251835),
    (0.3, 1.001837400992155747386),
    (1, 0.6556795424187984715439),
    (2.71828, 0.3308432181875107881812),
    (5, 0.1928081047153157648775),
    (10.1, 0.09806654408281639894729),
    (20, 0.04987592598183678365824),
    (30, 0.03329641907249721338187),
    (35.3, 0.02830593241095642610271),
    (35.4, 0.02822609943643098276146),
    (40, 0.02498440420572057114739),
    (100, 0.009999000299850104905604),
    (10000.0, 0.00009999999900000003000000),
    (100000000.0, 9.999999999999999000000e-9),
]


@pytest.mark.parametrize(("x", "value"), VALUES)
def test_the_mills_ratio_has_its_known_values(x: float, value: float) -> None:
    # below zero the ratio grows like exp(x^2 / 2), and so does the effect of rounding x / sqrt 2
    assert mills(x) == pytest.approx(value, rel=1e-15 * max(1, x * x if x < 0 else 1))


def test_bounds_that_hold_everywhere() -> None:
    # Gordon's inequalities x / (1 + x^2) < M(x) < 1 / x, across the change of method
    for k in range(1, 4000):
        x = k / 40
        assert x / (1 + x * x) < mills(x) < 1 / x


def test_overflow_is_an_error_not_a_number() -> None:
    with pytest.raises(OverflowError):
        mills(-60)
    assert math.isfinite(mills(-37))
