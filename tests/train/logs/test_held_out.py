"""Held-out records that are trained on: a private run says that what it measures on them is exact and unprotected."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from privctl.train.logs import held_out
from tests.audits.tiny import save_model, sentences, write_jsonl
from tests.models.tasks.small import architecture

SAID = "of the held-out data stands in the training data too"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held-out")
    save_model(folder / "start")
    write_jsonl(folder / "data.jsonl", sentences(40, seed=1))
    return folder


def warned(output: Path) -> list[str]:
    report = read_report(output.with_name(f"{output.name}.report.json"))
    return [warning for warning in report.warnings if SAID in warning]


@pytest.mark.parametrize("method", ["dp-sgd", "ferret", "plain"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_text_that_is_trained_on_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, shared: bool
) -> None:
    own = [json.loads(line)["text"] for line in (folder / "data.jsonl").read_text().splitlines()]
    held_out = tmp_path / "held-out.jsonl"
    write_jsonl(held_out, [*sentences(8, seed=2), *own[20 : 20 + shared]])
    more = {
        "dp-sgd": ["--noise-multiplier", "1"],
        "ferret": ["--release", "gaussian", "--epsilon", "20", "--groups", "4"],
        "plain": [],
    }[method]
    asked = ["--data", str(folder / "data.jsonl"), "--held-out", str(held_out), "--epochs", "1", "--batch-size", "10"]
    output = tmp_path / "out"
    asked += ["--micro-tokens", "160", "--device", "cpu", "-o", str(output)]
    assert run(["retrain", method, str(folder / "start"), *asked, *more]) == 0
    private = shared and method != "plain"
    assert [f"record 9 {SAID}" in warning for warning in warned(output)] == [True] * private
    assert (f"record 9 {SAID}" in " ".join(capsys.readouterr().err.split())) == private
    assert run(["verify", str(output.with_name("out.report.json")), "-q"]) == 0


def test_an_image_that_is_trained_on_is_named(tmp_path: Path) -> None:
    drawn, labels = np.random.default_rng(0), np.arange(20) % 2
    images = drawn.integers(0, 256, (20, 16, 16, 3)).astype(np.uint8)
    others = drawn.integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    net = architecture(tmp_path / "resnet", "resnet")
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    for shared in (True, False):
        held_out, output = tmp_path / f"held-out-{shared}.npz", tmp_path / f"out-{shared}"
        last = images[6:7] if shared else others[3:]
        np.savez(held_out, images=np.concatenate([others[:3], last]), labels=np.array([0, 1, 0, 0]))
        asked = ["--data", str(tmp_path / "data.npz"), "--held-out", str(held_out), "--epochs", "1", "--norm", "frozen"]
        asked += ["--task", "image-classification", "--labels", "0,1", "--noise-multiplier", "1", "--batch-size", "10"]
        assert run(["retrain", "dp-sgd", str(net), *asked, "--device", "cpu", "-q", "-o", str(output)]) == 0
        assert [f"record 4 {SAID}" in warning for warning in warned(output)] == [True] * shared


def test_one_record_alone_whatever_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all keys are too large for a signed number, which numpy 2.0 cannot look up in a table."""
    job: Any = SimpleNamespace(held_out=[2**63 + 1, 2**64 - 1], task=[2**64 - 1], request=None)
    monkeypatch.setattr(held_out, "withholds", lambda _: True)
    monkeypatch.setattr(held_out, "_keys", lambda keys: np.array(keys, dtype=np.uint64))
    assert held_out.shared_record(job) == 2
