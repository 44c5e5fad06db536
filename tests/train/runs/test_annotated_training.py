"""Labels of words and answers to questions, from files to a report: trained, loaded by transformers alone, audited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification

import privctl
from audits.scores.subject import load_subject, read
from audits.scores.table import FIELDS
from privctl.cli import run
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.encoding import TextOptions
from privctl.models.tasks.build import text_task
from tests.models.tasks.annotated import model_for, records, save, write
from tests.models.tasks.small import one_by_one
from verify.run import verify

TOKENS, ASKED = TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING
TASKS = (TOKENS, ASKED)
_CLASSES: dict[TaskName, Any] = {TOKENS: AutoModelForTokenClassification, ASKED: AutoModelForQuestionAnswering}


def private(start: Path, data: Path, output: Path, **settings: Any) -> Any:
    budget = {"steps": 1, "batch_size": 4, "epsilon": 8, "delta": 1e-2}
    return privctl.retrain("dp-sgd", start, data=data, output=output, **{**budget, **settings})


@pytest.mark.parametrize("task", [TOKENS, pytest.param(ASKED, marks=pytest.mark.slow)])
def test_a_private_training(tmp_path: Path, task: TaskName) -> None:
    start, data = save(tmp_path / "m", task), write(tmp_path / "a.jsonl", task, 3)
    messages: list[str] = []
    report = private(
        start, data, tmp_path / "out", held_out=write(tmp_path / "b.jsonl", task, 2, "cat"), notify=messages.append
    )
    assert report.parameters["task"] == task
    assert f"task {task}, by the model's config.json" in messages
    assert report.guarantees[0].epsilon <= 8
    quantities = {item.quantity for item in report.evidence}
    expected = (
        {"held-out accuracy", "held-out entity F1"} if task is TOKENS else {"held-out exact match", "held-out F1"}
    )
    assert expected <= quantities
    network = _CLASSES[task].from_pretrained(tmp_path / "out")
    assert network.config.num_labels == (5 if task is TOKENS else 2)
    path = tmp_path / "out.report.json"
    assert verify(path, report).exit_code is ExitCode.OK


@pytest.mark.parametrize("task", TASKS)
def test_an_audit_scores_what_training_minimizes(tmp_path: Path, task: TaskName) -> None:
    """The mean score of a record is its loss, negative, and does not depend on its batch."""
    subject = load_subject(save(tmp_path / "m", task), device="cpu")
    rows = subject.rows(read(subject, write(tmp_path / "a.jsonl", task))).rows
    found = subject.scorer.score(rows)[FIELDS.index("lp")]
    counts = subject.scorer.counts(rows)
    means = [part.mean() for part in np.split(found, np.cumsum(counts)[:-1])]
    model = model_for(tmp_path / "n", task)
    cut = TextOptions(long=LongTextPolicy.TRUNCATE)
    trained = text_task(model, records(tmp_path / "a.jsonl", task), cut)
    with torch.no_grad():
        losses = one_by_one(trained, model.network, range(4), 0).tolist()
    assert np.allclose(means, [-loss for loss in losses], atol=1e-5)
    assert np.std(means) > 0.01


def test_mistakes_of_users(tmp_path: Path) -> None:
    start, path = save(tmp_path / "m", TOKENS), tmp_path / "a.jsonl"
    for line, fault in (
        ({"tokens": ["Rome"], "ner_tags": ["B-TOWN"]}, r"a.jsonl line 1 has the label 'B-TOWN', which is not one of"),
        ({"tokens": ["Rome"], "ner_tags": []}, "line 1 has 1 word in 'tokens' and 0 labels in 'ner_tags'"),
        ({"text": "Rome", "label": "x"}, "line 1 lacks 'tokens'"),
    ):
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(InputError, match=fault):
            private(start, path, tmp_path / "out")
    with pytest.raises(CommandError, match="--secrets needs texts"):
        private(start, path, tmp_path / "out", secrets=path, epsilon=None)
    with pytest.raises(CommandError, match="--response-only does not apply to the task token-classification"):
        private(start, path, tmp_path / "out", response_only=True)
    with pytest.raises(CommandError, match="--labels does not apply to the task question-answering"):
        private(start, path, tmp_path / "out", task="question-answering", labels="a,b")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_adapters_and_other_methods(tmp_path: Path, task: TaskName) -> None:
    start, data = save(tmp_path / "m", task), write(tmp_path / "a.jsonl", task, 3)
    private(start, data, tmp_path / "lora", lora_rank=2, save_adapter=True)
    others = write(tmp_path / "c.jsonl", task, 3, "old")
    audited = privctl.audit(
        tmp_path / "lora", members=data, nonmembers=others, base=start, output=tmp_path / "lora.audit.report.json"
    )
    assert audited.parameters["task"] == task
    private(tmp_path / "lora", data, tmp_path / "again")
    more: dict[str, Any] = {"data": data, "batch_size": 4}
    privctl.retrain("dpquant", start, output=tmp_path / "q", epsilon=8, delta=1e-2, format="luq-fp4", steps=1, **more)
    privctl.retrain("clipped", start, output=tmp_path / "c", epochs=1, **more)
    private(start, data, tmp_path / "private", clipping_passes="2")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_new_head_on_a_language_model(tmp_path: Path, task: TaskName) -> None:
    from transformers import BertForMaskedLM

    start = model_for(tmp_path / "m", task).network
    folder = tmp_path / "body"
    BertForMaskedLM(start.config).save_pretrained(folder)
    for path in (tmp_path / "m").glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    for name in ("id2label", "label2id"):
        settings.pop(name, None)
    (folder / "config.json").write_text(json.dumps(settings))
    report = private(folder, write(tmp_path / "a.jsonl", task, 3), tmp_path / "out", task=str(task))
    assert report.parameters["task"] == task
    assert _CLASSES[task].from_pretrained(tmp_path / "out").config.num_labels == (5 if task is TOKENS else 2)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_learned_its_records_by_heart_is_found_out(tmp_path: Path, task: TaskName) -> None:
    """Labels, and places of answers, that nothing but memory tells."""
    start, members, others = save(tmp_path / "m", task), tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, seed in ((members, 1), (others, 2)):
        drawn = np.random.default_rng(seed)
        lines = []
        for _ in range(40):
            words = drawn.choice(["rome", "cat", "dog", "old", "the", "is", "in", "who"], 8).tolist()
            place = int(drawn.integers(8))
            if task is TOKENS:
                lines.append({"tokens": words, "ner_tags": drawn.choice(["O", "B-LOC", "B-PER"], 8).tolist()})
            else:
                start_of = len(" ".join(words[:place])) + bool(place)
                lines.append({"question": "who?", "context": " ".join(words), "answers": {
                    "text": [words[place]], "answer_start": [start_of]}})  # fmt: skip
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    privctl.retrain("plain", start, data=members, output=tmp_path / "out", steps=150, batch_size=20, learning_rate=1e-2)
    aucs = {}
    for model in (start, tmp_path / "out"):
        report = privctl.audit(
            model, members=members, nonmembers=others, output=tmp_path / f"{model.name}-audit.report.json"
        )
        aucs[model.name] = next(e.estimate for e in report.evidence if e.quantity == "AUC" and e.method == "loss")
    assert aucs["m"] < 0.65
    assert aucs["out"] > 0.8
    shadows = tmp_path / "shadows"
    code = run(["shadow", str(start), "--data", str(members), "--data", str(others), "--count", "4", "--steps", "2",
                "--vectorize", "4",  "--batch-size", "8", "-o", str(shadows)])  # fmt: skip
    assert code == 0
