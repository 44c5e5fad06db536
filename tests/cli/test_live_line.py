"""The line of a running training: what it shows, what it withholds, and what it costs."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.show import progress as shown
from privctl.show.progress import live_line
from privctl.train.logs import live
from privctl.train.logs.live import EpsilonSoFar, LiveMeasures, steps_ledger
from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.prepare import prepare
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from tests.few import few

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path, drawn = tmp_path / "train.jsonl", random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))} for _ in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def job(start: Path, data: Path, tmp_path: Path) -> TrainingJob:
    request = RetrainRequest(
        method=method_named("dp-sgd"),
        model=ModelRequest(path=start),
        data=DataRequest(train=data),
        budget=BudgetRequest(epsilon=3),
        output=tmp_path / "out",
        batch_size=12,
        epochs=20,
    )
    return prepare(request)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def measures_of(job: TrainingJob, clock: Clock | None = None) -> LiveMeasures:
    epsilon = EpsilonSoFar(job=job, spent=steps_ledger(job), trained=8672)
    return LiveMeasures(job=job, device=torch.device("cpu"), epsilon=epsilon, clock=clock or Clock())


def test_a_private_training_s_line_holds_public_quantities_alone(job: TrainingJob) -> None:
    """Two batches that differ in size, length and loss give the same line."""
    lines = []
    for examples, loss in (([0, 1, 2], 7.0), (list(range(40)), 0.5)):
        clock = Clock()
        measures = measures_of(job, clock)
        measures.step(1, examples, [torch.full((len(examples),), loss)])
        clock.now = 2.0
        found = dict(measures.now())
        found.pop("memory_bytes")
        lines.append(found)
    assert lines[0] == lines[1]
    assert set(lines[0]) == {"expected_records_per_second", "epsilon", "epsilon_at_step"}
    assert lines[0]["expected_records_per_second"] == 6


def test_what_is_asked_for_unprotected_is_shown(job: TrainingJob) -> None:
    clock = Clock()
    measures = measures_of(replace(job, request=replace(job.request, show_unprotected=True)), clock)
    measures.step(1, [0, 1, 2], [torch.tensor([1.0, 2.0]), torch.tensor([6.0])])
    clock.now = 2.0
    found = measures.now()
    assert found["training_loss"] == 3
    assert found["records_per_second"] == 1.5
    assert found["tokens_per_second"] > 1.5
    assert "training_loss" not in measures.now(), "every call begins anew"


def test_epsilon_so_far_is_an_upper_bound_within_the_budget(job: TrainingJob) -> None:
    spent = steps_ledger(job)
    assert job.delta is not None
    for begun in (1, 50, 100):
        measures = measures_of(job)
        measures.step(begun, [], [])
        found = measures.now()
        ledger = spent(begun)
        assert ledger is not None
        exact = epsilon_bound(ledger, job.delta)
        assert exact <= found["epsilon"] <= min(3, 1.02 * exact + 0.001)
        assert found["epsilon_at_step"] == begun


def test_epsilon_is_computed_seldom(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, timer = [], Clock()

    def slow(*args: object, **more: object) -> float:
        calls.append(args)
        timer.now += 0.1
        return 1.0

    monkeypatch.setattr(live, "time", SimpleNamespace(perf_counter=timer))
    monkeypatch.setattr(live, "epsilon_bound", slow)
    monkeypatch.setattr(live, "epsilon_with_charge", lambda bound, released, delta: (bound(delta), None))
    clock = Clock()
    measures = measures_of(job, clock)
    for second in range(100):
        clock.now = second
        measures.step(second + 1, [], [])
        measures.now()
    # A tenth of a second may be spent every ten: at most one percent.
    assert 10 <= len(calls) <= 11, "every ten seconds and after the last step"


def test_steps_cost_next_to_nothing(job: TrainingJob) -> None:
    measures = measures_of(job)
    begun = time.thread_time()  # which passes only while this thread computes
    for step in range(10_000):
        measures.step(step, [0] * 12, [])
    assert (time.thread_time() - begun) / 10_000 < 1e-4


@pytest.mark.parametrize(
    ("method", "more", "there", "absent"),
    few(
        [
            ("dp-sgd", ("--epsilon", "3"), ("epsilon", "records/s expected", "are withheld"), ("; loss", "tokens/s")),
            ("dp-sgd", ("--epsilon", "3", "--show-unprotected"), ("; loss", "tokens/s", "no guarantee covers"), ()),
            pytest.param(
                *("ferret", ("--epsilon", "3", "--release", "gaussian")),
                *(("epsilon", "are withheld"), ("; loss", "tokens/s")),
                marks=pytest.mark.slow,
            ),
            pytest.param(
                *("plain", (), ("; loss", "tokens/s", "peak memory", "to the last step"), ("epsilon", "withheld")),
                marks=pytest.mark.slow,
            ),
        ],
        0,
    ),
)
def test_the_line(
    method: str,
    more: tuple[str, ...],
    there: tuple[str, ...],
    absent: tuple[str, ...],
    start: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shown, "_LINE_EVERY", 0.0)
    call = ["retrain", method, str(start), "--data", str(data), "-o", str(tmp_path / "out"), "--batch-size", "12"]
    assert run([*call, "--epochs", "2", "--device", "cpu", *more]) == 0
    stderr = capsys.readouterr().err
    assert all(words in stderr for words in there), stderr
    assert not any(words in stderr for words in absent), stderr


def test_images_are_counted_in_records() -> None:
    line = live_line({"training_loss": 0.51234, "records_per_second": 812.4, "memory_bytes": 2**31}, seconds_left=3725)
    assert line == "loss 0.5123, 812 records/s, peak memory 2 GiB, 1:02:05 to the last step"
    assert live_line({"epsilon": 1.23401, "epsilon_at_step": 7.0}) == "epsilon 1.24 at step 7"


def test_lines_of_other_work_say_how_long_it_is_to_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 30.0, 30.0, 30.0, 30.0])
    monkeypatch.setattr(shown, "_LINE_EVERY", 10.0)
    monkeypatch.setattr(shown, "time", SimpleNamespace(monotonic=lambda: next(clock, 30.0)))
    with shown.progress("making candidates", 1000, "secrets") as advance:
        advance(250)
    assert "making candidates: 25 % of 1000 secrets after 30 s; 0:01:30 left\n" in capsys.readouterr().err
