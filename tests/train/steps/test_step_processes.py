"""The processes in which a bench makes the steps of several parties."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from tests.bench import dp_sgd, step_processes
from tests.bench.dp_sgd_parties import OURS
from tests.bench.dp_sgd_shapes import SHAPES
from tests.bench.step_processes import in_turns


def test_each_party_is_asked_for_its_step_in_its_own_process() -> None:
    here = os.getpid()

    def elsewhere() -> Callable[[], None]:
        def step() -> None:
            if os.getpid() == here:
                raise ValueError("the bench's own process")

        return step

    found = in_turns({"one": elsewhere, "other": elsewhere}, 2, peaks=True)
    assert [len(steps) for steps in found.values()] == [2, 2]
    assert all(step.keys() == {"seconds", "processor", "faults", "peak_mib"} for step in found["one"] + found["other"])


def test_times_need_no_account_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """gVisor, in which some GPUs are lent, keeps none."""
    for name in ("forget_peak", "status_mib"):
        monkeypatch.setattr(step_processes, name, _fails)
    (step,) = in_turns({"one": lambda: lambda: None}, 1)["one"]
    assert step.keys() == {"seconds", "processor", "faults"}


def test_the_peak_on_a_gpu_needs_no_account_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("forget_peak", "status_mib"):
        monkeypatch.setattr(dp_sgd, name, _fails)
    monkeypatch.setattr(dp_sgd, "work_of", lambda *_, **__: None)
    steps: list[str] = []
    monkeypatch.setattr(dp_sgd, "step_of", lambda _, name: lambda: steps.append(name))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: steps.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 << 20)
    assert dp_sgd._peak(next(iter(SHAPES.values())), OURS, "cuda") == 3
    assert steps == [OURS, "reset", OURS]


def _fails(*_: object) -> None:
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
