"""Classifiers and masked models: scores by their definition, whatever the batch."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from audits.scores.classes import ImageScorer, TextClassScorer, class_scores, pack, unpack
from audits.scores.forward import Batching
from audits.scores.masked import PASSES, MaskedScorer, MaskedSubject, pass_of_tokens
from audits.scores.rows import frame_of
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import AuditedModel, load_subject, read, task_of
from audits.scores.table import FIELDS
from privctl.data.records import Record
from privctl.domain.errors import CommandError, InputError
from tests.audits.other import NAMES, TASKS, save, write_data
from tests.audits.tiny import save_model
from tests.few import few

LP = FIELDS.index("lp")


def scores(subject: AuditedModel, records: list[Record]) -> np.ndarray:
    rows = subject.rows(records).rows
    return compute_scores(plan_scoring(subject.scorer, rows)).take(rows, subject.scorer.counts(rows))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: save(folder / kind, kind) for kind in TASKS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    return {kind: write_data(folder / kind, kind, 23, 5) for kind in TASKS}


@pytest.mark.parametrize("kind", TASKS)
def test_the_task_is_read_off_the_configuration(folders: dict[str, Path], kind: str) -> None:
    assert task_of(folders[kind]) == TASKS[kind]
    subject = load_subject(folders[kind], device="cpu")
    assert subject.describe()["task"] == TASKS[kind]


def test_a_causal_model_stays_one(tmp_path: Path) -> None:
    assert task_of(save_model(tmp_path)) == "causal-lm"


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_text_classes_by_definition(folders: dict[str, Path], data: dict[str, Path], kind: str) -> None:
    subject = load_subject(folders[kind], device="cpu")
    records = read(subject, data[kind])
    found = scores(subject, records)
    for i, record in enumerate(records):
        ids = subject.model.tokenizer(record.text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = subject.model.network(input_ids=ids).logits[0].double()
        own = NAMES.index(record.label or "")
        logp = logits.log_softmax(-1)
        assert found[LP, i] == pytest.approx(float(logp[own]), abs=1e-5)
        assert found[FIELDS.index("mu"), i] == pytest.approx(float((logp.exp() * logp).sum()), abs=1e-4)
        assert found[FIELDS.index("rank"), i] == float((logits > logits[own]).sum())
        assert found[FIELDS.index("margin"), i] == pytest.approx(
            float(logits[own] - logits[np.arange(len(NAMES)) != own].max()), abs=1e-5
        )
        assert found[FIELDS.index("lse"), i] == pytest.approx(float(logits.logsumexp(-1)), abs=1e-5)
    assert found[LP].std() > 0.05


@pytest.mark.parametrize("kind", few(["masked", "roberta"], 0))
def test_masked_tokens_by_definition(folders: dict[str, Path], data: dict[str, Path], kind: str) -> None:
    subject = load_subject(folders[kind], device="cpu")
    records = read(subject, data[kind])
    found, done = scores(subject, records), 0
    mask = subject.model.tokenizer.mask_token_id
    for record in records:
        ids = subject.model.tokenizer(record.text, return_tensors="pt")["input_ids"]
        tokens = ids.shape[1] - 2
        groups = pass_of_tokens(tokens)
        for t in range(tokens):
            masked = ids.clone()
            masked[0, 1 + np.flatnonzero(groups == groups[t])] = mask
            with torch.inference_mode():
                logp = subject.model.network(input_ids=masked).logits[0, 1 + t].log_softmax(-1)
            assert found[LP, done + t] == pytest.approx(float(logp[ids[0, 1 + t]]), abs=1e-4)
        done += tokens
    assert done == found.shape[1]
    assert found[LP].std() > 0.05


def test_a_seventh_is_hidden_at_a_time_and_every_token_once() -> None:
    for tokens in (1, 6, 7, 50):
        found = pass_of_tokens(tokens)
        assert len(found) == tokens
        sizes = np.bincount(found, minlength=PASSES)
        assert sizes.max() - sizes.min() <= 1
        assert np.array_equal(found, pass_of_tokens(tokens + 9)[:tokens]), (
            "a longer text hides its beginning in the same way"
        )


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_image_classes_by_definition(folders: dict[str, Path], data: dict[str, Path], kind: str) -> None:
    subject = load_subject(folders[kind], device="cpu")
    records = read(subject, data[kind])
    found = scores(subject, records)
    for i, record in enumerate(records):
        assert record.pixels is not None
        pixels = torch.from_numpy(record.pixels).permute(2, 0, 1)[None].float() / 127.5 - 1
        with torch.inference_mode():
            logp = subject.model.network(pixel_values=pixels).logits[0].log_softmax(-1)
        assert found[LP, i] == pytest.approx(float(logp[NAMES.index(record.label or "")]), abs=1e-4)
    assert found[LP].std() > 0.05


@pytest.mark.parametrize("kind", few(TASKS, *range(0, len(TASKS), 2)))
def test_scores_do_not_depend_on_the_batch(folders: dict[str, Path], data: dict[str, Path], kind: str) -> None:
    subject = load_subject(folders[kind], device="cpu")
    rows = subject.rows(read(subject, data[kind])).rows
    scorer = subject.scorer
    if isinstance(scorer, ImageScorer):
        together, alone = scorer.score(rows), scorer.score(rows, pixels=1)
    else:
        assert isinstance(scorer, (TextClassScorer, MaskedScorer))
        together, alone = scorer.score(rows), scorer.score(rows, batching=Batching(tokens=1, logits=1))
    backwards = scorer.score(rows[::-1])
    ends = np.cumsum(scorer.counts(rows[::-1]))[:-1]
    restored = np.concatenate(np.split(backwards, ends, axis=1)[::-1], axis=1)
    exact = [FIELDS.index(name) for name in ("lp", "mu", "var", "margin", "lse")]
    assert together[exact] == pytest.approx(alone[exact], abs=1e-4)
    assert together[exact] == pytest.approx(restored[exact], abs=1e-4)
    done: list[float] = []
    scorer.score(rows, done.append)
    assert sum(done) == plan_scoring(scorer, rows).work == int(scorer.counts(rows).sum())


def test_a_probability_near_one_keeps_its_digits() -> None:
    found = class_scores(torch.tensor([[40.0, 0.0], [0.0, 40.0], [3.0, 1.0]]), torch.tensor([0, 0, 0]))
    assert found[LP].tolist() == pytest.approx([-4.248354e-18, -40.0, -math.log1p(math.exp(-2))], rel=1e-6)
    assert torch.tensor([[40.0, 0.0]]).log_softmax(-1)[0, 0] == 0, "what an attack could not tell from certainty"


def test_images_survive_as_rows() -> None:
    source = np.random.default_rng(0)
    for pixels in (source.integers(256, size=(4, 5, 3), dtype=np.uint8), source.random((3, 4, 5), dtype=np.float32)):
        label, again, _ = unpack(pack(70_000, pixels))
        assert label == 70_000
        assert again.dtype == pixels.dtype
        assert np.array_equal(again, pixels)


def test_long_texts_keep_their_frame(folders: dict[str, Path]) -> None:
    subject = load_subject(folders["masked"], device="cpu", max_length=5)
    frame = frame_of(subject.model.tokenizer)
    found = subject.rows([Record(1, "the old cat sat on"), Record(2, "a cat")])
    assert [len(row) for row in found.rows] == [5, 4]
    assert found.truncated.tolist() == [True, False]
    assert all((row[0], row[-1]) == (frame.front[0], frame.back[0]) for row in found.rows)
    with pytest.raises(CommandError, match="of which special tokens take 2"):
        load_subject(folders["masked"], device="cpu", max_length=2)
    with pytest.raises(CommandError, match="at most 40 tokens"):
        load_subject(folders["masked"], device="cpu", max_length=41)


def test_mistakes_are_named(folders: dict[str, Path], data: dict[str, Path], tmp_path: Path) -> None:
    bert = load_subject(folders["bert"], device="cpu")
    with pytest.raises(InputError, match=r"line 1 has the label 'u', which .* not know \(its config.json names v, w"):
        bert.rows([Record(1, "a cat", "u")])
    assert bert.rows([Record(1, "a cat", "1")]).rows[0][-1] == 1, "labels go by number too"
    with pytest.raises(InputError, match="lacks 'label'"):
        plain = tmp_path / "plain.jsonl"
        plain.write_text('{"text": "a cat"}\n')
        read(bert, plain)
    with pytest.raises(CommandError, match="--resize does not apply to the task text-classification"):
        load_subject(folders["bert"], device="cpu", resize=(8, 8))
    with pytest.raises(CommandError, match="--max-length does not apply"):
        load_subject(folders["vit"], device="cpu", max_length=8)
    vit = load_subject(folders["vit"], device="cpu")
    with pytest.raises(InputError, match="is 32x32 pixels and .* takes 8x8; give --resize 8 8$"):
        vit.rows(read(vit, data["resnet"]))
    bert.model.tokenizer.mask_token = None
    with pytest.raises(InputError, match="without a mask token"):
        MaskedSubject(bert.model)


def test_spare_heads_of_a_masked_model_are_left_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["masked"], tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    spare = {**weights, "cls.seq_relationship.weight": np.zeros((2, 16), dtype=np.float32)}
    save_file(spare, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_subject(folder, device="cpu").task == "masked-lm"
    spare["bert.encoder.layer.7.output.dense.bias"] = np.zeros(16, dtype=np.float32)
    save_file(spare, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no place for: bert\.encoder\.layer\.7"):
        load_subject(folder, device="cpu")
    with pytest.raises(InputError, match=r"lacks .*classifier\.bias"):
        load_subject(folders["masked"], task="text-classification", device="cpu")


def test_digests_tell_records_apart() -> None:
    one = np.zeros((2, 2, 3), dtype=np.uint8)
    records = [
        Record(1, "a"), Record(1, "b"), Record(1, "a", "x"), Record(1, "a", "y"), Record(1, "", "x", one),
        Record(1, "", "x", one.reshape(1, 4, 3)), Record(1, "", "x", one + 1),
    ]  # fmt: skip
    assert len({record.digest for record in records}) == len(records)
    assert Record(1, "a").digest == Record(9, "a").digest
