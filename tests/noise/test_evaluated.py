"""``noise --evaluate`` of other models than causal ones: what ``retrain --held-out`` measures, beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import privctl
from privctl.cli import run
from privctl.models.choices import TaskName
from privctl.models.loading import load_for_training
from privctl.noise.privatize import measures_of
from privctl.reports.files import read_report
from privctl.show.comparison import UTILITIES
from privctl.train.release.held_out import held_out
from tests.zoo.shrink import build, write_data

CPU = torch.device("cpu")
NOISE = ("--noise-stddev", "1e-6", "-q")


def test_measures_are_the_tasks_own(tmp_path: Path) -> None:
    build("token-classification", "bert", tmp_path / "m")
    records = held_out(
        tmp_path / "m", TaskName.TOKEN_CLASSIFICATION, write_data("token-classification", tmp_path / "d")
    )
    found = records.measures(tmp_path / "m" / "model.safetensors")
    own = records.task.evaluate(load_for_training(tmp_path / "m", TaskName.TOKEN_CLASSIFICATION).network, CPU)
    expected = {"held-out accuracy": own["accuracy"], "held-out loss, nats": own["loss"]}
    assert list(found.items()) == [(name, pytest.approx(value, rel=1e-5)) for name, value in expected.items()]


@pytest.mark.parametrize(
    ("task", "kind", "reason"),
    [
        ("token-classification", "bros", "needs where each word stands on a page (bbox) beside the text"),
        ("question-answering", "lxmert", "needs the features of an image (visual_feats) beside the text"),
    ],
)
def test_networks_that_texts_alone_cannot_run(
    task: str, kind: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(task, kind, tmp_path / "m")
    data = write_data(task, tmp_path / "d")
    call = ["noise", str(tmp_path / "m"), *NOISE, "--evaluate", str(data), "-o", str(tmp_path / "out")]
    assert run(call) == 3
    stderr = capsys.readouterr().err
    assert f"({kind})" in stderr
    assert reason in stderr
    assert "config.json" not in stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("token-classification", "bert"),
        ("question-answering", "bert"),
        ("masked-lm", "bert"),
        ("text-classification", "bert"),
        ("image-classification", "resnet"),
        ("audio-classification", "wav2vec2"),
    ],
)
def test_measures_change_with_large_noise_only(
    task: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise of 1e-6 changes nothing that can be seen, and noise of 1 much."""
    build(task, kind, tmp_path / "m")
    data = write_data(task, tmp_path / "d")
    assert run(["noise", str(tmp_path / "m"), "--evaluate", str(data), "-o", str(tmp_path / "n"), *NOISE]) == 0
    found = measures_of(read_report(tmp_path / "n.report.json"))
    quantity = next(iter(found))
    stdout = capsys.readouterr().out
    assert quantity.removeprefix("held-out ").split()[-1] in stdout
    assert "held-out loss, nats" in found
    assert any(quantity in names for names in UTILITIES.values()) or task == "question-answering"
    trained = privctl.retrain(
        "plain", tmp_path / "m", data=write_data(task, tmp_path / "e", seed=1), held_out=data, output=tmp_path / "out",
        task=task, steps=1, batch_size=6, learning_rate=1e-12, device="cpu",
        **({"norm": "frozen"} if kind == "resnet" else {}),
    )  # fmt: skip
    before = {e.quantity: e.estimate for e in trained.evidence}
    for name, value in found.items():
        assert value == pytest.approx(before[name], abs=1e-3), name
    loud = privctl.noise(tmp_path / "m", noise_stddev=1.0, evaluate=data, output=tmp_path / "l")
    assert measures_of(loud[0])["held-out loss, nats"] > found["held-out loss, nats"] + 0.1


@pytest.mark.slow
def test_several_labels(tmp_path: Path) -> None:
    build("text-classification", "bert", tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"problem_type": "multi_label_classification"}))
    data = tmp_path / "d.jsonl"
    rows = [{"text": f"w{i} w{i + 1}", "label": ["LABEL_0", "LABEL_1"][: i % 3]} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    quiet, loud = privctl.noise(tmp_path / "m", noise_stddev=[1e-6, 1.0], evaluate=data, output=tmp_path / "n")
    assert next(iter(measures_of(quiet))) == "held-out micro F1"
    assert measures_of(loud)["held-out loss, nats"] > measures_of(quiet)["held-out loss, nats"]
