"""The root finder by known roots: which side of the root is returned, how near, and in how many calls."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import pytest

from privctl.accounting.brackets import costly_root, falling_bracket, falling_index, falling_root, threshold_bracket

Finder = Callable[[Callable[[float], float]], float]
FALLING: dict[str, Callable[[float], float]] = {
    "straight": lambda x: 3.7 - x,
    "power": lambda x: 3.7**-2 * x**-2 - 3.7**-4,
    "steep": lambda x: math.exp(min(700.0, 40 * (3.7 - x))) - 1,
    "step": lambda x: 1.0 if x < 3.7 else -1.0,
    "infinite": lambda x: math.inf if x < 1 else 3.7 - x,
}
FINDERS: dict[str, tuple[Finder, float]] = {
    "falling": (lambda f: falling_root(f, 0.5, f(0.5), 50, f(50), close=1e-9), 1e-8),
    "beyond": (lambda f: falling_root(f, 0.5, f(0.5), 50, f(50), close=1e-6, beyond=1e-6), 1e-5),
    "bracket": (lambda f: falling_bracket(f, 0.5, f(0.5), 50, relative=1e-9)[1], 1e-8),
    "costly": (lambda f: costly_root(f, 20, 0.01, 1e3, tolerance=1e-5, stride=0.5), 1e-5),
}


@pytest.mark.parametrize("name", FALLING)
@pytest.mark.parametrize("finder", FINDERS)
def test_a_falling_root_is_met_and_near(finder: str, name: str) -> None:
    find, near = FINDERS[finder]
    value = FALLING[name]
    found = find(value)
    assert value(found) <= 0, "the end that is returned has met the condition"
    assert found == pytest.approx(3.7, abs=near)


def test_a_costly_root_takes_few_calls() -> None:
    asked: list[float] = []

    def value(x: float) -> float:
        asked.append(x)
        return 3.7**-2 * x**-2 - 3.7**-4

    costly_root(value, 3.0, 0.01, 1e3, tolerance=1e-5, stride=0.5)
    assert len(asked) <= 10


@pytest.mark.parametrize("name", ["straight", "power", "infinite"])
@pytest.mark.parametrize("finder", ["falling", "bracket"])
def test_a_smooth_root_takes_half_the_calls_of_halving(finder: str, name: str) -> None:
    asked: list[float] = []

    def value(x: float) -> float:
        asked.append(x)
        return FALLING[name](x)

    FINDERS[finder][0](value)
    assert len(asked) <= 20  # halving takes 36


@pytest.mark.parametrize("name", FALLING)
def test_a_bracket_ends_between_neighbouring_floats(name: str) -> None:
    low, high = falling_bracket(FALLING[name], 0.5, FALLING[name](0.5), 50.0)
    assert math.nextafter(low, math.inf) == high
    assert FALLING[name](low) > 0 >= FALLING[name](high)


def test_halving_ends_between_neighbouring_floats() -> None:
    low, high = threshold_bracket(lambda x: x * x >= 2, 1.0, 2.0)
    assert math.nextafter(low, math.inf) == high
    assert low < math.sqrt(2) <= high


def test_ends_that_touch_already_are_returned_as_they_are() -> None:
    assert threshold_bracket(lambda _: pytest.fail("asked"), 1.0, 1.0 + 1e-9, within=1e-6) == (1.0, 1.0 + 1e-9)


@pytest.mark.parametrize("name", FALLING)
@pytest.mark.parametrize(
    ("low", "high"), [(-1, 10**6), (36_998, 37_002), (0, 37_000), (37_000, 50_000), (4, 5), (-9, 9)]
)
def test_a_falling_index_is_that_of_halving(name: str, low: int, high: int) -> None:
    """Also where it is an end, at which nothing is evaluated."""

    def value(index: int) -> float:
        assert low < index < high
        asked.append(index)
        return FALLING[name](max(index, 1) / 10_000)

    asked: list[int] = []
    found = falling_index(value, low, high)
    calls = len(asked)
    between = range(low + 1, high)
    assert found == low + 1 + bisect_left(between, True, key=lambda index: value(index) <= 0)
    # Halving takes 20 of a million.
    smooth = name in ("straight", "infinite") and high == 10**6
    assert calls <= (11 if smooth else 3 * (1 + math.log2(high - low)))
