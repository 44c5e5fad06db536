"""The task that ``retrain`` infers: a classifier stays one, and data that do not fit the head are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from privctl.cli import run
from privctl.models.choices import TaskName
from privctl.models.purpose import task_meant, task_named
from privctl.reports.files import read_report
from tests.models.tasks.small import architecture, config, words

HEADS = {
    "text-classification": AutoModelForSequenceClassification,
    "masked-lm": AutoModelForMaskedLM,
    "image-classification": AutoModelForImageClassification,
}


def saved(folder: Path, task: str, labels: int = 2) -> Path:
    """A model with the head of ``task`` and random weights."""
    torch.manual_seed(0)
    kind = "vit" if task == "image-classification" else "bert"
    HEADS[task].from_config(config(kind, num_labels=labels)).save_pretrained(folder)
    if kind == "bert":
        words().tokenizer.save_pretrained(folder)
    return folder


def records(path: Path, *, labels: int | None = 2) -> Path:
    rows = [{"text": f"the old cat sat on {'a mat' if i % 2 else 'the dog'}"} for i in range(12)]
    if labels is not None:
        rows = [row | {"label": str(i % labels)} for i, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def retrain(model: Path, data: Path, output: Path, *more: str) -> int:
    call = ["retrain", "plain", str(model), "--data", str(data), "-o", str(output), "--steps", "1", "--batch-size", "4"]
    return run([*call, "--device", "cpu", "-q", *more])


def test_a_classifier_is_trained_as_one(tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert retrain(saved(tmp_path / "m", "text-classification"), records(tmp_path / "d.jsonl"), output) == 0
    report = read_report(tmp_path / "out.report.json")
    assert report.parameters["task"] == "text-classification"
    assert json.loads((output / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_every_head_has_its_task(tmp_path: Path, start: Path) -> None:
    for task in HEADS:
        assert task_meant(saved(tmp_path / task, task)) is TaskName(task)
    assert task_meant(start) is TaskName.CAUSAL_LM
    assert task_named(start) is None
    assert task_meant(architecture(tmp_path / "vit", "vit")) is TaskName.IMAGE_CLASSIFICATION


def test_images_need_no_task_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=pixels, labels=np.arange(12) % 2)
    model = saved(tmp_path / "m", "image-classification")
    assert retrain(model, tmp_path / "d.npz", tmp_path / "out") == 0
    assert read_report(tmp_path / "out.report.json").parameters["task"] == "image-classification"
    assert retrain(model, tmp_path / "d.npz", tmp_path / "users", "--unit", "patient") == 2
    assert "protects one record at a time; remove it: what that means for all K" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "labels", "code", "because"),
    [
        ("text-classification", None, 3, "is a text classifier (BertForSequenceClassification)"),
        ("text-classification", 3, 3, "has a head for 2 classes, and"),
    ],
)
def test_data_that_do_not_fit_the_head_are_refused(
    head: str, labels: int | None, code: int, because: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = saved(tmp_path / "m", head), records(tmp_path / "d.jsonl", labels=labels)
    before = sorted(tmp_path.iterdir())
    assert retrain(model, data, tmp_path / "out") == code
    assert because in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_what_was_refused_may_be_asked_for(tmp_path: Path) -> None:
    model, data = saved(tmp_path / "m", "text-classification"), records(tmp_path / "d.jsonl", labels=3)
    assert retrain(model, data, tmp_path / "new-head", "--labels", "0,1,2") == 0
    masked = saved(tmp_path / "masked", "masked-lm")
    assert retrain(masked, data, tmp_path / "new-task", "--task", "text-classification") == 0
    assert retrain(masked, data, tmp_path / "texts", "--task", "masked-lm") == 0


def test_that_a_language_model_uses_no_labels_is_said(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = []
    for labels in (2, None):
        call = ["retrain", "plain", str(start), "--data", str(records(tmp_path / "d.jsonl", labels=labels))]
        assert run([*call, "-o", str(tmp_path / f"{labels}"), "--steps", "1", "--batch-size", "4"]) == 0
        errors.append(capsys.readouterr().err)
    assert all("task causal-lm, by the model's config.json" in error for error in errors)
    assert ["does not use the records' labels" in error for error in errors] == [True, False]


def test_a_kind_of_several_tasks_is_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = architecture(tmp_path / "bert", "bert")
    words().tokenizer.save_pretrained(bare)
    assert retrain(bare, records(tmp_path / "d.jsonl", labels=None), tmp_path / "out") == 2
    assert "give --task: causal-lm, masked-lm" in capsys.readouterr().err
