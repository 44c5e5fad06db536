"""What moved the weights of ``retrain dp-zo``, made again by verify: whole runs, planted faults, and forged files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.stats import norm
from torch import Tensor

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.mechanism import Optimizer
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from privctl.train.methods.dp_zo import run as dp_zo_run
from privctl.train.steps.gradient_noise import KeyedNoise
from tests.models.tasks.small import architecture, words
from verify.run import verify
from verify.weights.directional import _wrong_noise
from verify.weights.settings import TrainingFacts

WORDS = ("--batch-size", "6", "--delta", "1e-3", "--device", "cpu", "-q", "--directions", "2")
SETTINGS = ("--steps", "12", "--learning-rate", "1e-3", "--noise-multiplier", "2", "--weight-decay", "0.1")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of one layer, without weights, with a tokenizer."""
    folder = architecture(tmp_path_factory.mktemp("first") / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, first: Path) -> Path:
    """The report of a run with weight decay."""
    return trained_report(first, tmp_path_factory.mktemp("numbers"))


def trained_report(first: Path, folder: Path, *more: str) -> Path:
    data = folder / "train.jsonl"
    texts = (f"the cat sat on the {'mat' if i % 2 else 'dog'}" for i in range(30))
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["retrain", "dp-zo", str(first), "--data", str(data), "-o", str(folder / "out"), *WORDS, *SETTINGS, *more]
    assert run(words) == 0
    return folder / "out.report.json"


def reasons(path: Path, outcome: Outcome) -> list[str]:
    found = verify(path, read_report(path))
    return [verdict.reason for verdict in found.verdicts if verdict.subject == "weights" and verdict.outcome is outcome]


def test_the_moves_are_made_again_to_the_last_bit(trained: Path) -> None:
    (reason,) = (reason for reason in reasons(trained, Outcome.CONSISTENT) if "released numbers" in reason)
    assert "to the last bit what the first ones become by 24 released numbers" in reason
    assert "24 released numbers lie on the grid of the noise reported" in reason
    assert run(["verify", str(trained), "-q"]) == 0
    assert (trained.with_name("out.numbers.safetensors").stat().st_mode & 0o077) == 0


def test_some_weights_are_trained(first: Path, tmp_path: Path) -> None:
    path = trained_report(first, tmp_path, "--train", "*mlp*")
    assert any("to the last bit" in reason for reason in reasons(path, Outcome.CONSISTENT))


def rewritten(path: Path, folder: Path, change: Callable[[dict[str, np.ndarray]], object], file: str) -> Path:
    """A copy of the run at ``path`` whose ``file`` was changed, with digests that fit."""
    import shutil

    shutil.copytree(path.parent, folder, dirs_exist_ok=True)
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, {"format": "pt"})
    report = read_report(folder / path.name)
    data = json.loads((folder / path.name).read_text())
    for index, artifact in enumerate(report.outputs):
        if artifact.path == file:
            data["outputs"][index] |= {"digest": file_digest(folder / file), "bytes": (folder / file).stat().st_size}
    (folder / path.name).write_text(json.dumps(data))
    return folder / path.name


def _first(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], object]:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.ascontiguousarray(change(tensors[name]))

    return edit


def _one_bit(tensors: dict[str, np.ndarray]) -> None:
    name = sorted(tensors)[0]
    bits = tensors[name].copy().reshape(-1).view(np.int32)
    bits[-1] ^= 1
    tensors[name] = bits.view(np.float32).reshape(tensors[name].shape)


#: What somebody changed, in which file -> what verify says.
FORGED: dict[str, tuple[str, Callable[[dict[str, np.ndarray]], object], str]] = {
    "a bit of a weight": ("out/model.safetensors", _one_bit, "is not what the first weights become by the released"),
    "another number": (
        "out.numbers.safetensors",
        _first("numbers.released", lambda x: x + np.where(np.arange(x.size).reshape(x.shape) == 3, 1.0, 0.0)),
        "is not what the first weights become by the released",
    ),
    "halved numbers": ("out.numbers.safetensors", _first("numbers.released", lambda x: x / 2), "are no multiples of"),
    "fewer numbers": ("out.numbers.safetensors", _first("numbers.released", lambda x: x[:, :1]), "updates by 1 direc"),
    "steps twice": ("out.numbers.safetensors", _first("numbers.step", lambda x: x * 0), "not of different steps"),
    "steps never begun": ("out.numbers.safetensors", _first("numbers.step", lambda x: x + 1), "of the 12 begun"),
    "other rates": ("out.numbers.safetensors", _first("numbers.rate", lambda x: 2 * x), "are not those of the report"),
    "no finite number": (
        "out.numbers.safetensors", _first("numbers.released", lambda x: x * np.inf), "not all numbers kept are finite"
    ),
    "large numbers": ("out.numbers.safetensors", _first("numbers.released", lambda x: 64 * x), "give .* at most"),
}  # fmt: skip


@pytest.mark.forged("files beside the model were rewritten")
@pytest.mark.parametrize("name", FORGED)
def test_forged_files_are_refuted(trained: Path, tmp_path: Path, name: str) -> None:
    import re

    file, change, says = FORGED[name]
    path = rewritten(trained, tmp_path / "copy", change, file)
    data = json.loads(path.read_text())
    for artifact in data["inputs"]:
        artifact["path"] = str((trained.parent / artifact["path"]).resolve())
    path.write_text(json.dumps(data))
    found = " ".join(reasons(path, Outcome.REFUTED))
    assert re.search(says, found)


@pytest.mark.forged("the numbers are left out of the report")
def test_without_the_numbers_the_weights_are_left_open(trained: Path) -> None:
    report = read_report(trained)
    outputs = tuple(artifact for artifact in report.outputs if artifact.role != "numbers")
    report_path = trained.with_name("forged.report.json")
    data = json.loads(trained.read_text())
    data["outputs"] = [artifact for artifact in data["outputs"] if artifact["role"] != "numbers"]
    report_path.write_text(json.dumps(data))
    found = verify(report_path, replace(report, outputs=outputs))
    assert not any("released numbers" in verdict.reason for verdict in found.verdicts)
    assert found.exit_code is ExitCode.BAD_INPUT
    (reason,) = [v.reason for v in found.verdicts if v.subject == "weights" and v.outcome is Outcome.INCONCLUSIVE]
    assert reason.startswith("the report names no file of the numbers that moved the weights")


class HalfNoise(KeyedNoise):
    """A fault: half of the noise that was asked for."""

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        super().release(tensors, stddev / 2, step)


@pytest.mark.forged("the run has half the noise of its report")
def test_a_run_with_half_its_noise_is_refuted(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_zo_run, "KeyedNoise", HalfNoise)
    path = trained_report(first, tmp_path)
    assert any("are no multiples of" in reason for reason in reasons(path, Outcome.REFUTED))
    assert run(["verify", str(path), "-q"]) == 1


def facts(**more: Any) -> TrainingFacts:
    settings: dict[str, Any] = {
        "method": "dp-zo", "updates": 400, "planned": 400, "learning_rate": 1e-3, "schedule": "constant", "warmup": 0,
        "optimizer": Optimizer.SGD, "batch_size": 8.0, "examples": 400, "noise_multiplier": 2.0, "clip_norm": 0.5,
        "momentum": 0.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0,
    }  # fmt: skip
    return TrainingFacts(**{**settings, **more})


@pytest.mark.parametrize(("share", "signal", "found"), [(1.0, 0.0, False), (1.0, 1.0, False), (0.5, 0.0, True)])
def test_half_the_noise_on_the_right_grid_is_seen_by_its_size(share: float, signal: float, found: bool) -> None:
    """Whoever rounds less noise onto the grid of all of it is found where the sums of batches do not outweigh it."""
    source = np.random.default_rng(3)
    grid = 2.0**-5  # the largest power of two up to 1/32 of the deviation 1
    sums = signal * source.normal(size=(400, 1))
    released = np.round((sums + share * source.normal(size=(400, 1))) / grid) * grid
    wrong = [each for each in _wrong_noise(released, facts()) if "is not in the released numbers" in each]
    assert bool(wrong) is found
    assert not [each for each in _wrong_noise(released, facts()) if "multiples" in each]


def test_a_step_larger_than_its_clip_norm_allows_is_found() -> None:
    """400 examples at a rate of 1/50: more than 40 in one batch of 400 happen with less than 1e-9."""
    released = np.zeros((400, 1))
    released[:, 0] = np.round(norm.ppf((np.arange(400) + 0.5) / 400) * 32) / 32
    assert not list(_wrong_noise(released, facts()))
    released[7] = 40.0
    (reason,) = _wrong_noise(released, facts())
    assert "a step released numbers of the norm 40" in reason
    assert torch.isfinite(torch.from_numpy(released)).all()
