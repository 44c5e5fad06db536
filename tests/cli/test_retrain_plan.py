"""``privctl retrain --dry-run``: what a run would do, without one; and warnings of what cannot work."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.accounting.buffered import BufferedMatrix
from privctl.accounting.calibrate import noise_multiplier_for
from privctl.cli import run
from privctl.domain.events import Ledger, SampledGaussian
from privctl.models.tasks.corpus import CorpusTask
from privctl.reports.files import read_report
from privctl.train.preparation.signal_to_noise import (
    SignalToNoise,
    noise_warnings,
    random_sign_warnings,
    signal_to_noise,
)
from privctl.train.settings.recipe import TrainingSettings
from tests.few import few

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
METHODS = {
    "dp-sgd": ("--epsilon", "3"),
    "dpquant": ("--epsilon", "3", "--format", "luq-fp4"),
    "ferret": ("--epsilon", "3", "--release", "gaussian"),
    "clipped": (),
    "plain": (),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path, drawn = tmp_path / "train.jsonl", random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9))), "label": str(i % 2)} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def planned(method: str, model: Path, data: Path, output: Path, *more: str) -> int:
    call = ["retrain", method, str(model), "--data", str(data), "-o", str(output), "--batch-size", "12"]
    return run([*call, "--epochs", "2", "--device", "cpu", "--dry-run", *more])


@pytest.mark.parametrize(
    "method",  # dpquant is planned as dp-sgd is, but for its layers; clipped as plain, with clipping's memory
    few(METHODS, *(i for i, name in enumerate(METHODS) if name in ("plain", "dp-sgd"))),
)
def test_every_method_is_planned_and_nothing_is_written(
    method: str,
    start: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No record of the data goes through the network: their words are never looked up for a batch."""
    texts = CorpusTask.rows

    def made_up_only(task: CorpusTask, examples: list[int]) -> object:
        assert len(task.corpus.examples) != 60, "a private record was put into a batch"
        return texts(task, examples)

    monkeypatch.setattr(CorpusTask, "rows", made_up_only)
    before = sorted(tmp_path.rglob("*"))
    assert planned(method, start, data, tmp_path / "out", *METHODS[method], "--json") == 0
    assert sorted(tmp_path.rglob("*")) == before
    plan = json.loads(capsys.readouterr().out)
    assert plan["dry_run"] is True
    assert (plan["records"], plan["steps"], plan["sampling_rate"]) == (60, 10, 0.2)
    assert 0 < plan["seconds"] < 60
    assert plan["memory"] > 2**20
    # Weights and gradients are float32, and so are the two moments of AdamW; FERRET keeps fewer.
    least = None if method == "ferret" else 16 * plan["trained"]
    assert plan["gpu_memory"] is None if least is None else least < plan["gpu_memory"] < plan["memory"]
    if METHODS[method]:
        bought = {budget["epsilon"]: budget["amount"] for budget in plan["budgets"]}
        assert bought[3.0] == pytest.approx(plan["amount"], rel=1e-2)
        assert bought[0.5] > bought[1] > bought[8]
    else:
        assert plan["budgets"] == []


def test_the_plan_s_noise_is_the_run_s(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned("dp-sgd", start, data, tmp_path / "out", "--epsilon", "3", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    call = ["retrain", "dp-sgd", str(start), "--data", str(data), "-o", str(tmp_path / "out"), "--batch-size", "12"]
    assert run([*call, "--epochs", "2", "--device", "cpu", "-q", "--epsilon", "3"]) == 0
    (guarantee,) = read_report(tmp_path / "out.report.json").guarantees
    assert guarantee.noise_multiplier == plan["amount"]
    assert plan["delta"] == guarantee.delta


def test_a_plan_without_budget_states_the_epsilon_that_follows(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned("dp-sgd", start, data, tmp_path / "out", "--noise-multiplier", "1.34437", "--json") == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(3, abs=0.01)


def test_signs_as_published_are_planned_in_nats(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned("ferret", start, data, tmp_path / "out", "--epsilon", "0.5") == 0
    stdout = capsys.readouterr().out
    assert "0.5 nats of mutual information" in stdout
    assert "delta" not in stdout


@pytest.mark.parametrize("call", few(["plan", "run"], 0))
def test_a_budget_that_buys_nothing_is_said_before_the_training(
    call: str, start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["retrain", "dp-sgd", str(start), "--data", str(data), "-o", str(tmp_path / "out"), "--batch-size", "12"]
    more = ["--epochs", "1", "--device", "cpu", *(["--dry-run"] if call == "plan" else [])]
    assert run([*words, *more, "--noise-multiplier", "40"]) == 0
    written = capsys.readouterr()
    text = " ".join((written.out if call == "plan" else written.err).split())
    assert "nothing can be learned with noise multiplier" in text
    assert text.index("nothing can be learned") < text.find("wrote") or call == "plan"
    assert run([*words, *more, "--noise-multiplier", "1", "-f"]) == 0
    assert "nothing can be learned" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_private_vocabulary_is_said_in_the_plan(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (start / name).unlink(missing_ok=True)
    assert planned("dp-sgd", start, data, tmp_path / "out", "--epsilon", "3", "--vocabulary", "private", "-q") == 0
    assert "the guarantee will be void" in " ".join(capsys.readouterr().out.split())


def test_a_plan_continues_no_run(start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned("plain", start, data, tmp_path / "out", "--resume") == 2
    assert "remove --resume" in capsys.readouterr().err


@pytest.mark.parametrize("correlated", ["bands", "buffers"])
def test_correlated_noise_is_held_against_the_matrix_that_correlates_it(correlated: str) -> None:
    """The length of C's row sums, for a matrix written out."""
    first, weight, decay, steps = 0.8, 0.5, 0.6, 7
    lags = [first, 0.5, 0.1] if correlated == "bands" else [first, *(weight * decay**i for i in range(steps))]
    rows = np.array([[lags[t - s] if 0 <= t - s < len(lags) else 0.0 for s in range(steps)] for t in range(steps)])
    law: dict[str, Any] = {"coefficients": tuple(lags)}
    if correlated == "buffers":
        law = {"matrix": BufferedMatrix(first=first, weights=(weight,), decays=(decay,))}
    recipe = TrainingSettings(
        method="dp-sgd", steps=steps, batch_size=10, sample_rate=0.1, learning_rate=1, noise_multiplier=2, **law
    )
    assert signal_to_noise(recipe, 100).along == pytest.approx(np.linalg.norm(rows.sum(axis=1)) * 10 / 2)
    plain = signal_to_noise(replace(recipe, coefficients=None, matrix=None), 100)
    assert plain.along == pytest.approx(math.sqrt(steps) * 10 / 2)


@pytest.mark.parametrize(
    ("size", "batch", "steps", "grows"),
    [(1500, 5, 2, True), (1500, 64, 704, True), (1500, 1024, 44, False), (40, 40, 1, False)],
)
def test_larger_batches_are_advised_where_they_help(size: int, batch: int, steps: int, grows: bool) -> None:
    """At epsilon 8, by the accountant: twice the batch, or twice the epochs, raises the ratio where that is advised."""

    def ratio(batch: int, steps: int) -> SignalToNoise:
        noise = noise_multiplier_for(
            8,
            1e-5,
            lambda noise: Ledger(
                events=(SampledGaussian(noise_multiplier=noise, sample_rate=batch / size, steps=steps),)
            ),
        )
        recipe = TrainingSettings(
            method="dp-sgd", steps=steps, batch_size=batch, sample_rate=batch / size, learning_rate=1,
            noise_multiplier=noise,
        )  # fmt: skip
        return signal_to_noise(recipe, 10**9)

    at = ratio(batch, steps)
    assert at.grows == grows
    gains = [ratio(min(size, 2 * batch), steps if batch == size else (steps + 1) // 2).along / at.along]
    gains.append(ratio(batch, 2 * steps).along / at.along)
    assert (max(gains) > 1.1) == grows
    (warning,) = noise_warnings(at)
    assert ("raise --batch-size or --epochs" in warning) == grows
    planned = replace(at, sample_rate=1.0)
    assert not planned.grows


def test_what_can_be_learned_at_most() -> None:
    """100 steps of 64 examples under a multiplier of 640 are one standard deviation."""
    at = SignalToNoise(steps=100, batch=64, noise_multiplier=640, numbers=10_000)
    assert at.along == pytest.approx(1)
    assert at.in_length == pytest.approx(0.01)
    (warning,) = noise_warnings(SignalToNoise(steps=100, batch=64, noise_multiplier=641, numbers=1))
    assert warning.startswith("nothing can be learned")
    (warning,) = noise_warnings(at)
    assert warning.startswith("little may be learned")
    assert "100 times as far" in warning
    assert not list(noise_warnings(SignalToNoise(steps=100, batch=64, noise_multiplier=64, numbers=10_000)))
    odds = 2 * math.atanh(0.1)
    assert not list(random_sign_warnings(100, odds))
    assert list(random_sign_warnings(99, odds))


def test_a_plan_needs_no_output_and_a_run_does(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    call = [
        "retrain",
        "dp-sgd",
        str(start),
        "--data",
        str(data),
        "--epsilon",
        "8",
        "--device",
        "cpu",
        "--batch-size",
        "12",
    ]
    (tmp_path / "private").mkdir()
    assert run([*call, "--dry-run"]) == 0
    assert "noise multiplier" in capsys.readouterr().out
    assert run(call) == 2
    assert "Missing option '-o' / '--output'" in capsys.readouterr().err
    assert list((tmp_path / "private").iterdir()) == []
