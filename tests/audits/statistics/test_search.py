"""Bisections that end on the side that was asked for."""

from __future__ import annotations

import math

import pytest

from audits.statistics.search import largest, smallest


@pytest.mark.parametrize("turn", [0.01, 1.2345678, 6.999])
def test_the_side_and_the_distance(turn: float) -> None:
    below = largest(lambda x: x < turn, 0.0, 7.0, 1e-9)
    above = smallest(lambda x: x >= turn, 0.0, 7.0, 1e-9)
    assert turn - 1e-9 <= below < turn
    assert turn <= above <= turn + 1e-9


def test_no_precision_means_neighbouring_floats() -> None:
    found = smallest(lambda x: x * x >= 2, 1.0, 2.0, 0.0)
    assert found * found >= 2 > math.nextafter(found, 0) ** 2
