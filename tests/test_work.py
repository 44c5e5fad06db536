"""What tests count work with notices more of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.work import calls, ends, memory


def test_loops_that_call_are_counted() -> None:
    few, many = (calls(lambda n=n: [abs(i) for i in range(n)]) for n in (10, 1000))
    assert many - few == 990


def test_arrays_are_counted() -> None:
    assert memory(lambda: np.ones(100)) < 10_000 < 7_900_000 < memory(lambda: np.ones(10**6)) < 8_100_000


def test_what_does_not_end_fails() -> None:
    with pytest.raises(AssertionError, match="may never end"), ends(0.2):
        while True:
            pass
    with ends(0.2):
        pass
