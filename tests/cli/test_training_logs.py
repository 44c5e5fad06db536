"""``privctl retrain --log``: each library's own log, what is withheld from it, and runs that are resumed."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import random
import stat
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from privctl.train.logs import live
from privctl.train.methods import METHODS, method_named
from privctl.train.steps import loop
from tests.few import few
from tests.models.tasks.small import same_records

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
PRIVATE = {"training_loss", "epoch_training_loss", "records_per_second", "tokens_per_second", "median_norm"}
#: What is withheld, and when epsilon is logged, is decided where dp-sgd's steps are counted, for dpquant too.
PRIVATE_METHODS = [
    ("dp-sgd", ()),
    pytest.param("dp-zo", (), marks=pytest.mark.slow),
    # What the lines of a log may hold is decided in one place for all methods; tests/train/logs/test_withheld.py has
    # a quick run of ferret.
    pytest.param("ferret", ("--release", "gaussian"), marks=pytest.mark.slow),
    pytest.param("dpquant", ("--format", "luq-fp4"), marks=pytest.mark.slow),
]
EXACT = PRIVATE | {"clipped_fraction", "zeroed_fraction"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path, drawn = tmp_path / "train.jsonl", random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))} for _ in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def retrain(method: str, model: Path, data: Path, output: Path, *more: str) -> int:
    call = ["retrain", method, str(model), "--data", str(data), "-o", str(output), "--batch-size", "12"]
    return run([*call, "--epochs", "2", "--micro-tokens", "160", "--device", "cpu", "-q", *more])


def rows(output: Path) -> list[dict[str, str]]:
    with output.with_name(f"{output.name}.log.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_is_its_owner_s_alone_and_holds_every_step(start: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "plain"
    assert retrain("plain", start, data, output, "--log", "csv", "--held-out", str(same_records(data))) == 0
    assert stat.S_IMODE((tmp_path / "plain.log.csv").stat().st_mode) == 0o600
    lines = rows(output)
    losses = {int(row["step"]): float(row["value"]) for row in lines if row["measure"] == "training_loss"}
    assert sorted(losses) == list(range(1, 11))
    assert all(0 < loss < 20 for loss in losses.values())
    epochs = [row["step"] for row in lines if row["measure"] == "held_out_perplexity"]
    assert epochs == ["5", "10"]
    # A log that stands is not overwritten unasked.
    assert retrain("plain", start, data, tmp_path / "other", "--log", "csv") == 0
    (tmp_path / "other" / "model.safetensors").unlink()
    assert retrain("plain", start, data, output, "--log", "csv", "-f") == 0


def test_every_method_with_a_guarantee_withholds() -> None:
    assert {name for name in METHODS if method_named(name).private} == {"dp-sgd", "dp-zo", "ferret", "dpquant"}


@pytest.mark.parametrize(("method", "budget"), PRIVATE_METHODS)
def test_a_private_run_s_log_holds_no_exact_measure(
    method: str, budget: tuple[str, ...], start: Path, data: Path, tmp_path: Path
) -> None:
    """And no epsilon in it is below that of its step.

    It is computed every few seconds alone: the steps between have none, and the last has that of the report.
    """
    more = ("--noise-multiplier", "0.8", "--log", "csv", *budget)
    assert retrain(method, start, data, tmp_path / "a", *more) == 0
    measures = rows(tmp_path / "a")
    assert {row["measure"] for row in measures} == {"epsilon"}, "time and memory follow from the secret batches too"
    assert retrain(method, start, data, tmp_path / "b", *more, "--show-unprotected") == 0
    assert {row["measure"] for row in rows(tmp_path / "b")} & EXACT
    logged = {int(row["step"]): float(row["value"]) for row in measures}
    stated = min(g.epsilon for g in read_report(tmp_path / "a.report.json").guarantees if g.epsilon is not None)
    assert max(logged) == 10
    assert stated <= logged[10] <= 1.1 * stated
    assert all(logged[step] < logged[10] for step in logged if step < 10)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_reads_its_log(start: Path, data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert retrain("plain", start, data, tmp_path / "out", "--log", "tensorboard", "--log", "csv") == 0
    folder = tmp_path / "out.tensorboard"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    events = EventAccumulator(str(folder))
    events.Reload()
    written = {(str(e.step), f"{e.value:.4g}") for e in events.Scalars("training_loss")}
    assert written == {
        (row["step"], f"{float(row['value']):.4g}")
        for row in rows(tmp_path / "out")
        if row["measure"] == "training_loss"
    }
    assert retrain("plain", start, data, tmp_path / "new", "--log", "tensorboard") == 0
    (tmp_path / "third.tensorboard").mkdir()
    assert retrain("plain", start, data, tmp_path / "third", "--log", "tensorboard") == 2


@pytest.mark.parametrize("method", few(["plain", "dp-sgd"], 1))
def test_a_resumed_run_goes_on_with_its_log(
    method: str, start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log had gone three steps beyond the state that was saved."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    more = ("--log", "csv", "--log", "tensorboard", *(() if method == "plain" else ("--noise-multiplier", "2")))
    monkeypatch.setattr(live, "_EVERY", 0.0)
    monkeypatch.setattr(live, "_SHARE", math.inf)
    step = loop.Trainer._step

    def killed(self: Any, engine: Any, optimizer: Any, updates: int, *args: Any) -> Any:
        if updates == 8:
            raise MemoryError("killed")
        return step(self, engine, optimizer, updates, *args)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_step", killed)
        assert retrain(method, start, data, tmp_path / "out", *more) == 4
    name = "training_loss" if method == "plain" else "epsilon"
    logged = [int(row["step"]) for row in rows(tmp_path / "out") if row["measure"] == name]
    assert max(logged) == 8
    assert retrain(method, start, data, tmp_path / "out", *more, "--resume") == 0
    lines = rows(tmp_path / "out")
    assert max(Counter((row["step"], row["measure"]) for row in lines).values()) == 1
    steps = [int(row["step"]) for row in lines if row["measure"] == name]
    assert steps == sorted(steps)
    assert {1, 5, 10} <= set(steps)
    events = EventAccumulator(str(tmp_path / "out.tensorboard"))
    events.Reload()
    logged_steps = [event.step for event in events.Scalars(name)]
    assert len(logged_steps) == len(set(logged_steps))
    assert logged_steps == steps


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_absent_library_is_one_sentence_before_the_training(
    name: str,
    start: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *more: None if asked == name else find(asked, *more))
    assert retrain("plain", start, data, tmp_path / "out", "--log", name) == 2
    stderr = capsys.readouterr().err
    assert f"pip install 'privctl[{name}]'" in stderr
    assert len(stderr.splitlines()) == 1
    assert not list(tmp_path.glob("out*"))


class Service(types.ModuleType):
    """Stands in for wandb and mlflow: keeps what it was sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sent: list[tuple[int, dict[str, float]]] = []
        self.begun: list[dict[str, Any]] = []
        self.ended = 0
        self.__spec__ = importlib.util.spec_from_loader(name, None)

    def init(self, **fields: Any) -> Any:
        self.begun.append(fields)
        return types.SimpleNamespace(id="r1", log=lambda m, step: self.sent.append((step, m)), finish=self.end_run)

    def Settings(self, **fields: Any) -> dict[str, Any]:  # noqa: N802
        return fields

    def start_run(self, **fields: Any) -> Any:
        self.begun.append(fields)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def log_metrics(self, measures: dict[str, float], step: int) -> None:
        self.sent.append((step, measures))

    def end_run(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("name", ["wandb", pytest.param("mlflow", marks=pytest.mark.slow)])
def test_a_service_gets_what_is_released_and_each_step_once(
    name: str, start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    step = loop.Trainer._step

    def interrupted(self: Any, engine: Any, optimizer: Any, updates: int, *args: Any) -> Any:
        if updates == 8:
            raise MemoryError("killed")
        return step(self, engine, optimizer, updates, *args)

    more = ("--log", name, "--noise-multiplier", "2")
    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_step", interrupted)
        assert retrain("dp-sgd", start, data, tmp_path / "out", *more) == 4
    assert retrain("dp-sgd", start, data, tmp_path / "out", *more, "--resume") == 0
    assert service.ended == 2
    assert "r1" in {service.begun[1].get("id"), service.begun[1].get("run_id")}
    assert not EXACT & {measure for _, measures in service.sent for measure in measures}
    keys = Counter((at, measure) for at, measures in service.sent for measure in measures)
    assert max(keys.values()) == 1
    assert max(at for at, _ in service.sent) == 10


@pytest.mark.slow
def test_unprotected_measures_in_a_service_are_warned_of(
    start: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Service("wandb"))
    call = ["retrain", "dp-sgd", str(start), "--data", str(data), "-o", str(tmp_path / "out"), "--batch-size", "12"]
    more = ["--epochs", "1", "--device", "cpu", "--epsilon", "3", "--log", "wandb", "--show-unprotected"]
    assert run([*call, *more]) == 0
    assert "sends exact losses of the private examples to wandb" in capsys.readouterr().err
