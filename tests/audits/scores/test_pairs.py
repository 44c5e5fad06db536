"""Sequence-to-sequence models: scores of the target's tokens by their definition, whatever the batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from audits.scores.forward import Batching
from audits.scores.seq2seq import PairScorer
from audits.scores.subject import AuditedModel, load_subject, read
from audits.scores.table import FIELDS
from audits.whole.parts import _require_causal
from privctl.domain.errors import CommandError, InputError
from tests.audits.other import sentences
from tests.models.tasks.small import save_pairs_model

LP = FIELDS.index("lp")


@pytest.fixture(scope="module", params=["t5", "bart"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AuditedModel:
    return load_subject(save_pairs_model(tmp_path_factory.mktemp("m") / "m", request.param), device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    pairs = zip(sentences(9, 5), sentences(9, 6), strict=True)
    path.write_text("".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs))
    return path


@pytest.mark.parametrize("flag", ["--train", "--canaries"])
def test_how_a_text_goes_on_is_not_asked_of_pairs(subject: AuditedModel, flag: str) -> None:
    with pytest.raises(CommandError, match=f"{flag} asks how a text goes on, .* writes a target from a source"):
        _require_causal(subject, flag)


def test_targets_by_definition(subject: AuditedModel, data: Path) -> None:
    records = read(subject, data)
    rows = subject.rows(records).rows
    assert isinstance(subject.scorer, PairScorer)
    found, done = subject.scorer.score(rows, batching=Batching(tokens=64)), 0
    for record, count in zip(records, subject.scorer.counts(rows).tolist(), strict=True):
        source, target = record.pair
        ids = subject.model.tokenizer(source, return_tensors="pt")["input_ids"]
        labels = subject.model.tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logp = subject.model.network(input_ids=ids, labels=labels).logits[0].double().log_softmax(-1)
        expected = logp.gather(1, labels[0][:, None])[:, 0].numpy()
        assert count == len(expected) == len(target.split()) + 2
        assert np.allclose(found[LP, done : done + count], expected, atol=1e-4)
        ranks = (logp > torch.from_numpy(expected)[:, None]).sum(1).numpy()
        assert np.array_equal(found[FIELDS.index("rank"), done : done + count], ranks)
        done += count
    assert done == found.shape[1]
    assert found[LP].std() > 0.05


def test_long_pairs_are_cut_and_counted(subject: AuditedModel, data: Path) -> None:
    short = type(subject)(subject.model, 8)  # type: ignore[call-arg]
    rows = short.rows(read(subject, data))
    assert 0 < rows.truncated.sum() < 9
    assert max(int(row[0]) for row in rows.rows) == max(short.scorer.counts(rows.rows)) == 8
    with pytest.raises(CommandError, match="--max-length is 3; it must be at least 4"):
        type(subject)(subject.model, 3)  # type: ignore[call-arg]


def test_texts_without_a_target_are_refused(subject: AuditedModel, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n')
    with pytest.raises(InputError, match="line 1 holds no pair of texts"):
        read(subject, tmp_path / "a.jsonl")
