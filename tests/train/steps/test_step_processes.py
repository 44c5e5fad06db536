"""The processes in which a bench makes the steps of several parties."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.bench.step_processes import in_turns


def test_each_party_is_asked_for_its_step_in_its_own_process() -> None:
    here = os.getpid()

    def elsewhere() -> Callable[[], None]:
        def step() -> None:
            if os.getpid() == here:
                raise ValueError("the bench's own process")

        return step

    found = in_turns({"one": elsewhere, "other": elsewhere}, 2)
    assert [len(steps) for steps in found.values()] == [2, 2]
    assert all(step.keys() == {"seconds", "processor", "faults", "peak_mib"} for step in found["one"] + found["other"])


def _fails() -> None:
    raise ValueError("no step here")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _fails, "bad: ValueError: no step here"),
        (lambda: _fails(), "bad: ValueError: no step here"),
        (lambda: lambda: os._exit(3), "bad: its process ended"),
    ],
)
def test_a_party_that_fails_is_named(make: Callable[[], Callable[[], None]], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        in_turns({"good": lambda: lambda: None, "bad": make}, 1)
