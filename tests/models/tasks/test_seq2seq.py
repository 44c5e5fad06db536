"""Sequence-to-sequence models: pairs of texts, losses as transformers computes them, gradients of each pair its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, MBartConfig, MBartForConditionalGeneration

from privctl.data.columns import Columns, text_of
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.encoding import TextOptions
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.pairs import decoder_inputs, decoder_start, split
from privctl.models.purpose import task_meant
from privctl.models.tasks.build import text_task
from privctl.models.tasks.seq2seq import SequenceToSequence
from tests.models.tasks.small import PAIRS, RECORDS, architecture, config, one_by_one, words
from tests.train.clipping.support import agree

CPU = torch.device("cpu")
KINDS = ("t5", "bart")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingModel]:
    folder = tmp_path_factory.mktemp("models")
    return {
        kind: load_for_training(architecture(folder / kind, kind), TaskName.SEQ2SEQ_LM, vocabulary=words())
        for kind in KINDS
    }


def task_for(model: TrainingModel, records: tuple[TextRecord, ...] = PAIRS) -> SequenceToSequence:
    task = text_task(model, records, seed=7)
    assert isinstance(task, SequenceToSequence)
    return task


@pytest.mark.parametrize(("kind", "role"), [("t5", "pad_token_id"), ("bart", "eos_token_id")])
def test_with_a_new_vocabulary_the_decoder_begins_as_no_target_does(
    models: dict[str, TrainingModel], kind: str, role: str
) -> None:
    """By the role that its architecture gives to the token before a target."""
    tokenizer = models[kind].text.tokenizer  # type: ignore[union-attr]
    start = decoder_start(Path("m"), models[kind].network)
    assert start == models[kind].decoder_start == getattr(tokenizer, role)
    assert start != tokenizer(text_target="the cat")["input_ids"][0]


def test_with_a_new_vocabulary_the_longest_texts_end_with_its_token(tmp_path: Path) -> None:
    """And not with the id that the architecture's own vocabulary gave to the end of text."""
    start = architecture(tmp_path / "b", "bart", forced_eos_token_id=2)
    model = load_for_training(start, TaskName.SEQ2SEQ_LM, vocabulary=words())
    tokenizer = model.text.tokenizer  # type: ignore[union-attr]
    encoded = tokenizer("the cat", return_tensors="pt")
    (text,) = model.network.generate(**encoded, max_length=6, min_length=5, do_sample=False).tolist()
    assert len(text) == 6
    assert text[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_transformers_whatever_the_batch(models: dict[str, TrainingModel], kind: str) -> None:
    model = models[kind]
    task, order = task_for(model), [3, 0, 2, 4, 1]
    batch = task.batch(order, CPU, 0)
    losses = task.losses(model.network, batch).detach()
    assert torch.allclose(losses, one_by_one(task, model.network, order, 0), atol=1e-5)
    assert losses.unique().numel() == 5
    tokenizer = model.text.tokenizer  # type: ignore[union-attr]
    for example, loss in zip(order, losses, strict=True):
        source, target = PAIRS[example].pair
        encoded = tokenizer(source, return_tensors="pt")
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        theirs = model.network(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], labels=labels)
        assert loss.item() == pytest.approx(theirs.loss.item(), abs=1e-5)
    counts = torch.tensor([len(split(row)[1]) for row in task.rows(order)])
    measured = task.evaluate(model.network, CPU)
    assert measured["tokens"] == counts.sum()
    assert measured["loss"] == pytest.approx(float((losses * counts).sum() / counts.sum()), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_of_source_and_target_never_matters(models: dict[str, TrainingModel], kind: str) -> None:
    task = task_for(models[kind])
    expected = task.losses(models[kind].network, task.batch([0, 1], CPU, 0))
    longer = replace(task, padding=70)
    batch = longer.batch([0, 1], CPU, 0)
    assert batch["input_ids"].shape == batch["targets"].shape == (2, 35)
    assert torch.allclose(longer.losses(models[kind].network, batch), expected, atol=1e-5)
    hidden = batch["attention_mask"] == 0
    batch["input_ids"][hidden] = 8
    batch["decoder_input_ids"][batch["weights"] == 0] = 8
    assert torch.allclose(longer.losses(models[kind].network, batch), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_each_pair_are_those_of_a_loop(models: dict[str, TrainingModel], kind: str) -> None:
    task = task_for(models[kind])

    def losses(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return task.losses(network, batch)

    agree(models[kind].network, losses, task.batch([3, 0, 2, 4, 1], CPU, 0))


def test_the_decoder_begins_as_the_network_says() -> None:
    sizes = config("bart").to_dict()
    network = MBartForConditionalGeneration(MBartConfig(**{**sizes, "model_type": "mbart"}))
    assert decoder_start(Path("m"), network) is None  # the language's id, which ends a target, comes first
    targets = np.array([[5, 6, 3], [7, 3, 0]])
    expected = network.prepare_decoder_input_ids_from_labels(torch.tensor([[5, 6, 3], [7, 3, -100]]))
    found = decoder_inputs(targets, [3, 2], None)
    real = targets != 0
    assert np.array_equal(found[real], expected.numpy()[real])
    assert np.array_equal(decoder_inputs(targets, [3, 2], 9), [[9, 5, 6], [9, 7, 3]])


def test_a_network_that_shifts_no_target_is_refused(models: dict[str, TrainingModel]) -> None:
    network = models["bart"].network
    handle = network.get_decoder().register_forward_pre_hook(
        lambda _, given, named: (given, {**named, "input_ids": named["input_ids"].flip(1)}), with_kwargs=True
    )
    try:
        with pytest.raises(InputError, match="does not give its decoder the target shifted by one"):
            decoder_start(Path("m"), network)
    finally:
        handle.remove()


def test_long_texts_are_cut_one_by_one(models: dict[str, TrainingModel]) -> None:
    model = models["bart"]
    task = text_task(model, PAIRS, TextOptions(long=LongTextPolicy.TRUNCATE, max_length=7))
    assert isinstance(task, SequenceToSequence)
    parts = [split(row) for row in task.corpus.examples]
    assert max(len(part) for pair in parts for part in pair) == 7
    assert all(part[-1] == 3 for pair in parts for part in pair)
    assert 0 < task.corpus.shortened < 5
    with pytest.raises(InputError, match="line 1 has 9 tokens in its source where the limit is 7"):
        text_task(model, PAIRS, TextOptions(max_length=7))
    with pytest.raises(CommandError, match="would part a source from its target"):
        text_task(model, PAIRS, TextOptions(long=LongTextPolicy.SPLIT))


PAIR = Columns(pair=True)


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({"source": "a b", "target": "c"}, PAIR),
        ({"prompt": "a b", "response": "c", "source": "web"}, PAIR),
        ({"instruction": "a b", "output": "c", "text": "both"}, PAIR),
        ({"article": "a b", "target": "c"}, Columns(pair=True, text="article")),
        ({"article": "a b", "summary": "c"}, Columns(pair=True, text="article", label="summary")),
        ({"text": "x", "source": "a b", "target": "c"}, PAIR),
    ],
)
def test_pairs_are_read_from_fields(fields: dict[str, str], columns: Columns) -> None:
    passage = text_of(fields, "a", columns)
    assert (passage.text, passage.start) == ("a b\nc", 4)


@pytest.mark.parametrize("fields", [{"text": "a"}, {"source": "a"}, {"prompt": "a", "target": "b"}])
def test_a_record_without_a_pair_is_refused(fields: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no pair of texts, and a sequence-to-sequence model needs"):
        text_of(fields, "a", PAIR)
    table = tmp_path / "a.csv"
    table.write_text(",".join(fields) + "\n" + ",".join(fields.values()) + "\n")
    with pytest.raises(InputError, match="holds no pair of texts"):
        read_texts(table, columns=PAIR)
    with pytest.raises(InputError, match="no column 'summary'|lacks 'summary'"):
        read_texts(table, columns=Columns(pair=True, text=next(iter(fields)), label="summary"))


def test_the_task_is_read_off_the_configuration(tmp_path: Path) -> None:
    named = architecture(tmp_path / "b", "bart", architectures=["BartForConditionalGeneration"])
    assert task_meant(named) is TaskName.SEQ2SEQ_LM
    assert task_meant(architecture(tmp_path / "t", "t5")) is TaskName.SEQ2SEQ_LM
    with pytest.raises(CommandError, match="give --task: .*seq2seq-lm"):
        task_meant(architecture(tmp_path / "u", "bart"))  # it may serve to classify too
    GPT2Config().save_pretrained(tmp_path / "g")
    with pytest.raises(InputError, match="is a gpt2 model, which is not a sequence-to-sequence model"):
        load_for_training(tmp_path / "g", TaskName.SEQ2SEQ_LM)
    with pytest.raises(InputError, match=r"encoder-decoder model \(t5\).*give --task seq2seq-lm"):
        load_for_training(tmp_path / "t", TaskName.CAUSAL_LM)


def test_an_encoder_decoder_classifies_texts(tmp_path: Path) -> None:
    start, labels = architecture(tmp_path / "b", "bart"), ["a", "b", "c"]
    model = load_for_training(start, TaskName.TEXT_CLASSIFICATION, labels=labels, vocabulary=words())
    task = text_task(model, RECORDS)

    def losses(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return task.losses(network, batch)

    agree(model.network, losses, task.batch([3, 0, 2, 4, 1], CPU, 0))
    twice = replace(RECORDS[1], text="the old <eos> dog")
    with pytest.raises(InputError, match="line 2 does not hold the end-of-text token '<eos>' exactly once"):
        text_task(model, [RECORDS[0], twice])
