"""Sequence-to-sequence models from their files to a report: trained, loaded by transformers alone, and audited."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import privctl
from tests.models.tasks.small import save_pairs_model

WORDS = ["cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and", "too"]


def pairs(path: Path, count: int, seed: int, names: tuple[str, str] = ("source", "target")) -> Path:
    drawn = random.Random(seed)
    lines = [{name: " ".join(drawn.choices(WORDS, k=drawn.randint(3, 8))) for name in names} for _ in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.slow
def test_a_private_training_of_pairs(tmp_path: Path) -> None:
    start, data = save_pairs_model(tmp_path / "m", "bart"), pairs(tmp_path / "a.jsonl", 16, 1, ("article", "summary"))
    held_out = pairs(tmp_path / "b.jsonl", 4, 2, ("article", "summary"))
    messages: list[str] = []
    report = privctl.retrain(
        "dp-sgd", start, data=data, held_out=held_out, output=tmp_path / "out", text_column="article",
        label_column="summary", steps=1, batch_size=4, epsilon=8, delta=1e-2, notify=messages.append,
    )  # fmt: skip
    assert report.parameters["task"] == "seq2seq-lm"
    assert "task seq2seq-lm, by the model's config.json" in messages
    (guarantee,) = report.guarantees
    assert guarantee.epsilon <= 8
    assert any(item.quantity == "held-out perplexity" for item in report.evidence)
    network = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("the cat", return_tensors="pt")["input_ids"]
    assert network(input_ids=ids, decoder_input_ids=ids).logits.shape[1] == ids.shape[1]


@pytest.mark.slow
def test_a_model_that_learned_pairs_by_heart_is_found_out(tmp_path: Path) -> None:
    start, members = save_pairs_model(tmp_path / "m", "t5"), pairs(tmp_path / "a.jsonl", 40, 1)
    others = pairs(tmp_path / "b.jsonl", 40, 2)
    privctl.retrain("plain", start, data=members, output=tmp_path / "out", steps=60, batch_size=16, learning_rate=1e-2)
    aucs = {}
    for model in (start, tmp_path / "out"):
        report = privctl.audit(
            model, members=members, nonmembers=others, output=tmp_path / f"{model.name}-audit.report.json"
        )
        found = {item.method: item.estimate for item in report.evidence if item.quantity == "AUC"}
        assert {"loss", "min-k", "min-k++", "zlib"} <= set(found)
        aucs[model.name] = found["loss"]
    assert aucs["m"] < 0.65
    assert aucs["out"] > 0.75
