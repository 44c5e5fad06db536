"""What is cut off a printed bound never makes it look better."""

from __future__ import annotations

import random

import pytest

from privctl.domain.shown import apart, counted, downward, upward


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (6.541041e-06, "6.54105e-06", "6.54104e-06"),
        (1e-05, "1e-05", "1e-05"),
        (0.1, "0.1", "0.1"),
        (8.000000001, "8.00001", "8"),
        (7.9999999, "8", "7.99999"),
        (0.0, "0", "0"),
        (float("inf"), "inf", "inf"),
    ],
)
def test_to_the_safe_side(value: float, up: str, down: str) -> None:
    assert (upward(value), downward(value)) == (up, down)


def test_never_to_the_other_side() -> None:
    drawn = random.Random(0)
    for _ in range(2000):
        value = drawn.uniform(0, 1) * 10.0 ** drawn.randint(-12, 9)
        assert float(downward(value)) <= value <= float(upward(value)) <= value * (1 + 1.1e-5)


def test_numbers_that_differ_look_different() -> None:
    assert apart(1.0, 2.0) == ("1", "2")
    assert apart(6.54104e-06, 6.5410401e-06) == ("6.54104e-06", "6.5410401e-06")
    assert apart(1.0, 1.0 + 2**-52, 1.0) == ("1", "1.0000000000000002", "1")
    assert apart(0.5, 0.5) == ("0.5", "0.5")


def test_one_is_singular() -> None:
    assert [counted(n, "tensor") for n in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]
    assert [counted(n, "canary is", "canaries are") for n in (1, 3)] == ["1 canary is", "3 canaries are"]
