"""Heads that predict several labels or a number: losses, measures and scores by definition, labels from records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

import privctl
from audits.scores.classes import class_scores, flag_scores, number_scores
from audits.scores.subject import load_subject, read
from audits.scores.table import FIELDS
from privctl.data.columns import Columns, HeadKind, label_of
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import TaskName
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.tasks.build import text_task
from tests.models.tasks.small import TEXTS, architecture, one_by_one, words
from tests.train.clipping.support import agree

CPU = torch.device("cpu")
NAMES = ("a", "b", "c")
LABELS: dict[HeadKind, list[Any]] = {
    HeadKind.SEVERAL: [["a"], [], ["c", "a"], "b", ["a", "b", "c"]],
    HeadKind.NUMBER: [0.5, -2, 3, "1.25", 0],
}
TARGETS = {
    HeadKind.SEVERAL: [[1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1]],
    HeadKind.NUMBER: [[0.5], [-2], [3], [1.25], [0]],
}
PROBLEMS = tuple(LABELS)


def model_for(folder: Path, problem: HeadKind) -> TrainingModel:
    outputs = {"num_labels": 1} if problem is HeadKind.NUMBER else {}
    start = architecture(folder, "bert", problem_type=str(problem), **outputs)
    named = None if problem is HeadKind.NUMBER else NAMES
    return load_for_training(start, TaskName.TEXT_CLASSIFICATION, labels=named, vocabulary=words(), seed=3)


def save(folder: Path, problem: HeadKind) -> Path:
    model = model_for(folder.with_name(f"{folder.name}-start"), problem)
    model.network.save_pretrained(folder)
    model.companion.save_pretrained(folder)
    return folder


def write(path: Path, problem: HeadKind, copies: int = 1, word: str = "very") -> Path:
    lines = [{"text": f"{text} {f'{word} ' * i}", "label": label}
             for i in range(copies) for text, label in zip(TEXTS, LABELS[problem], strict=True)]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def records(path: Path, problem: HeadKind) -> list[TextRecord]:
    return read_texts(write(path, problem), labelled=True, columns=Columns(problem=problem))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_losses_and_gradients_are_those_of_transformers(tmp_path: Path, problem: HeadKind) -> None:
    model = model_for(tmp_path / "m", problem)
    task, order = text_task(model, records(tmp_path / "a.jsonl", problem)), [3, 0, 2, 4, 1]
    batch = task.batch(order, CPU, 0)
    assert batch["labels"].tolist() == [TARGETS[problem][i] for i in order]
    found = task.losses(model.network, batch).detach()
    assert torch.allclose(found, one_by_one(task, model.network, order, 0), atol=1e-5)
    theirs = model.network(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss.item()
    assert found.mean().item() == pytest.approx(theirs / 2 if problem is HeadKind.NUMBER else theirs, abs=1e-5)

    def losses(network: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return task.losses(network, rows)

    agree(model.network, losses, batch)
    measured = task.evaluate(model.network, CPU)
    logits = model.network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.detach()
    if problem is HeadKind.NUMBER:
        assert measured["squared_error"] == pytest.approx((logits - batch["labels"]).square().mean().item(), abs=1e-5)
        return
    from sklearn.metrics import f1_score

    expected = f1_score(batch["labels"].numpy(), (logits > 0).numpy(), average="micro")
    assert 0 < expected < 1
    assert measured["micro_f1"] == pytest.approx(expected)


def test_a_set_of_labels_scores_as_one_choice_among_all_sets() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)) * 2
    sets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    flags = sets[torch.arange(7)]
    expected = class_scores(logits @ sets.T, torch.arange(7))
    found = flag_scores(logits, flags)
    for name in ("lp", "mu", "var", "margin", "lse"):
        i = FIELDS.index(name)
        assert torch.allclose(found[i], expected[i], atol=1e-4), name
    rank = FIELDS.index("rank")
    assert torch.equal(found[rank] == 0, expected[rank] == 0)
    certain = flag_scores(torch.tensor([[40.0]]), torch.tensor([[1.0]]))[0, 0].item()
    assert certain == pytest.approx(-math.exp(-40))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_audit_scores_them(tmp_path: Path, problem: HeadKind) -> None:
    subject = load_subject(save(tmp_path / "m", problem), device="cpu")
    rows = subject.rows(read(subject, write(tmp_path / "a.jsonl", problem))).rows
    found = subject.scorer.score(rows)
    assert subject.scorer.counts(rows).tolist() == [1] * 5
    for i, text in enumerate(TEXTS):
        ids = subject.model.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = subject.model.network(input_ids=ids).logits
        true = torch.tensor([TARGETS[problem][i]], dtype=torch.float64)
        score = flag_scores if problem is HeadKind.SEVERAL else number_scores
        assert np.allclose(found[:, i], score(logits, true)[:, 0].numpy(), atol=1e-4)


def test_labels_of_records() -> None:
    several, number = Columns(problem=HeadKind.SEVERAL), Columns(problem=HeadKind.NUMBER)
    assert label_of({"label": ["b", 1, "b"]}, "a", several) == '["1", "b"]'
    assert label_of({"label": "3"}, "a", number) == "3.0"
    for value in (True, None, "x", float("nan"), [1]):
        with pytest.raises(InputError, match="has no finite number as 'label', which the model predicts"):
            label_of({"label": value}, "a", number)
    with pytest.raises(InputError, match=r"a lacks 'label'"):
        label_of({}, "a", number)
    with pytest.raises(InputError, match="a number with a fraction as 'label'"):
        label_of({"label": [0.5]}, "a", several)
    with pytest.raises(InputError, match='one label of a record; give one, or set "problem_type"'):
        label_of({"label": ["b"]}, "a", Columns())


def test_heads_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    two = architecture(tmp_path / "two", "bert", problem_type="regression", num_labels=2)
    with pytest.raises(InputError, match="2 outputs in its config.json; regression predicts one number"):
        load_for_training(two, TaskName.TEXT_CLASSIFICATION, vocabulary=words())
    one = architecture(tmp_path / "one", "bert", problem_type="regression", num_labels=1)
    with pytest.raises(CommandError, match="--labels names classes, and the model predicts a number"):
        load_for_training(one, TaskName.TEXT_CLASSIFICATION, labels=["a", "b"], vocabulary=words())


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_private_training(tmp_path: Path, problem: HeadKind) -> None:
    start, data = save(tmp_path / "m", problem), write(tmp_path / "a.jsonl", problem, 4)
    report = privctl.retrain(
        "dp-sgd", start, data=data, held_out=write(tmp_path / "b.jsonl", problem), output=tmp_path / "out", steps=2,
        batch_size=4, epsilon=8, delta=1e-2,
    )  # fmt: skip
    quantity = "held-out micro F1" if problem is HeadKind.SEVERAL else "held-out mean squared error"
    assert quantity in {item.quantity for item in report.evidence}
    network = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert network.config.problem_type == str(problem)
    audited = privctl.audit(
        tmp_path / "out",
        members=data,
        nonmembers=write(tmp_path / "c.jsonl", problem, 4, "old"),
        output=tmp_path / "r.json",
    )
    assert audited.parameters["task"] == "text-classification"
