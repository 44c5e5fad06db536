"""Progress without a terminal: a watcher of the output can tell long work from work that hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import privctl
from privctl.domain.progress import Advance
from privctl.show import progress as shown


def test_long_work_without_progress_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, said = [], threading.Event()

    def note(message: str, *, quiet: bool = False) -> None:
        lines.append(message)
        said.set()

    monkeypatch.setattr(shown, "note", note)
    monkeypatch.setattr(shown, "_STILL_EVERY", 0.01)
    monkeypatch.setenv("CI", "true")
    before = threading.active_count()
    with shown.progress("counting", 4, "steps") as advance:
        advance(1)
        assert said.wait(60)
    assert lines[0].startswith("counting: 25 % of 4 steps after ")
    assert threading.active_count() == before
    with pytest.raises(ZeroDivisionError), shown.progress("counting", 4, "steps"):
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_verify_shows_each_of_its_stages(tmp_path: Path) -> None:
    stages = []

    @contextmanager
    def seen(label: str, total: float, unit: str) -> Iterator[Advance]:
        done: list[float] = []
        yield done.append
        stages.append((label, unit, sum(done) == total))

    place = tmp_path / "plan.json"
    privctl.account(noise_multiplier=1, sample_rate=0.01, steps=10, delta=1e-5, output=place)
    privctl.verify(place, progress=seen)
    assert stages == [
        ("reading the files", "bytes", True),
        ("comparing the weights with the training", "model", True),
        ("recomputing", "guarantees", True),
    ]
