"""Every task: an example's loss is its own, whatever its batch, its padding and the rest of the data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from privctl.data.images import ImageSet
from privctl.data.labels import labels_of
from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import InputError
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.encoding import TextOptions
from privctl.models.language import load_model
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.tasks.base import Task, group_by_length
from privctl.models.tasks.build import image_task, text_task
from privctl.models.vocabulary import frequent_words, private_vocabulary
from tests.models.tasks.small import RECORDS, TEXTS, architecture, one_by_one, words

CPU = torch.device("cpu")
IMAGES = ImageSet(
    pixels=np.random.default_rng(0).integers(256, size=(5, 8, 8, 3), dtype=np.uint8),
    labels=("a", "b", "c", "a", "b"),
    places=[f"image {i}" for i in range(5)],
)
LARGER = ImageSet(
    pixels=np.random.default_rng(1).integers(256, size=(5, 32, 32, 3), dtype=np.uint8),
    labels=IMAGES.labels,
    places=IMAGES.places,
)
CASES = [
    ("gpt2", TaskName.CAUSAL_LM),
    ("llama", TaskName.CAUSAL_LM),
    ("bert", TaskName.MASKED_LM),
    ("roberta", TaskName.MASKED_LM),
    ("bert", TaskName.TEXT_CLASSIFICATION),
    ("roberta", TaskName.TEXT_CLASSIFICATION),
    ("gpt2", TaskName.TEXT_CLASSIFICATION),
    ("llama", TaskName.TEXT_CLASSIFICATION),
    ("vit", TaskName.IMAGE_CLASSIFICATION),
    ("resnet", TaskName.IMAGE_CLASSIFICATION),
]


def model_for(folder: Path, kind: str, name: TaskName, **settings: Any) -> TrainingModel:
    if name is TaskName.IMAGE_CLASSIFICATION:
        norm = "frozen" if kind == "resnet" else None
        return load_for_training(architecture(folder, kind), name, labels=["a", "b", "c"], norm=norm, **settings)
    labels = ["a", "b"] if name is TaskName.TEXT_CLASSIFICATION else None
    return load_for_training(architecture(folder, kind), name, labels=labels, vocabulary=words(), **settings)


def task_for(model: TrainingModel) -> Task:
    if model.images is None:
        return text_task(model, RECORDS, seed=7)
    # ResNet halves its images four times: larger ones leave it more than a pixel to normalise
    return image_task(model, IMAGES if model.images.size else LARGER)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_losses_in_a_batch_are_those_one_by_one(tmp_path: Path, kind: str, name: TaskName) -> None:
    model = model_for(tmp_path, kind, name)
    task = task_for(model)
    assert (task.name, len(task)) == (name, 5)
    order = [3, 0, 2, 4, 1]
    batch = task.batch(order, CPU, step=5)
    assert {len(tensor) for tensor in batch.values()} == {5}
    losses = task.losses(model.network, batch)
    assert losses.shape == (5,)
    assert losses.dtype == torch.float32
    assert torch.allclose(losses, one_by_one(task, model.network, order, 5), atol=1e-5)
    assert losses.unique().numel() == 5
    losses.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in _used(model, name))
    measured = task.evaluate(model.network, CPU)
    if name is not TaskName.CAUSAL_LM and name is not TaskName.MASKED_LM:
        assert measured["loss"] == pytest.approx(losses.mean().item(), abs=1e-5)
    assert all(math.isfinite(value) for value in measured.values())
    assert not model.network.training


def _used(model: TrainingModel, name: TaskName) -> list[torch.nn.Parameter]:
    """Parameters that every example reaches; a masked model's token types and the like included."""
    return [p for n, p in model.network.named_parameters() if "pooler" not in n or name in _POOLED]


_POOLED = (TaskName.TEXT_CLASSIFICATION,)


@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[0] not in ("vit", "resnet")])
def test_padding_never_matters(tmp_path: Path, kind: str, name: TaskName) -> None:
    model = model_for(tmp_path, kind, name)
    task = task_for(model)
    batch = task.batch([0, 1], CPU, step=1)
    wider = {key: functional.pad(t, (0, 9)) if t.ndim == 2 else t for key, t in batch.items()}
    pad = model.text.pad if model.text else 0
    wider["input_ids"][:, batch["input_ids"].shape[1] :] = pad
    expected = task.losses(model.network, batch)
    assert torch.allclose(task.losses(model.network, wider), expected, atol=1e-5)
    if name in (TaskName.CAUSAL_LM, TaskName.MASKED_LM) and kind != "roberta":
        # where the attention mask says padding, not even another token makes a difference
        wider["input_ids"][:, batch["input_ids"].shape[1] :] = 8
        assert torch.allclose(task.losses(model.network, wider), expected, atol=1e-5)


def test_a_causal_loss_is_the_mean_over_its_predicted_tokens(tmp_path: Path) -> None:
    model = model_for(tmp_path, "gpt2", TaskName.CAUSAL_LM)
    task = task_for(model)
    ids = model.text.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]  # type: ignore[union-attr]
    assert ids[0, 0] == 2  # <bos>
    assert ids[0, -1] == 3  # <eos>
    logits = model.network(input_ids=ids).logits
    expected = functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert task.losses(model.network, task.batch([0], CPU, 0))[0].item() == pytest.approx(expected.item(), abs=1e-5)
    measured = task.evaluate(model.network, CPU)
    lengths = [len(model.text.tokenizer(text)["input_ids"]) - 1 for text in TEXTS]  # type: ignore[union-attr]
    losses = one_by_one(task, model.network, range(5), 0).detach()
    assert measured["tokens"] == sum(lengths)
    assert measured["loss"] == pytest.approx(float(losses @ torch.tensor(lengths).float()) / sum(lengths), abs=1e-5)
    assert measured["perplexity"] == pytest.approx(math.exp(measured["loss"]))


def test_only_a_response_counts_when_asked(tmp_path: Path) -> None:
    model = model_for(tmp_path, "llama", TaskName.CAUSAL_LM)
    record = TextRecord(stretch=Stretch("a.jsonl line"), text="the old cat\nsat on", start=12)
    task = text_task(model, [record], TextOptions(response_only=True))
    weights = task.batch([0], CPU, 0)["weights"][0]
    # <bos> the old cat | sat on <eos>
    assert weights.tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0])
    without_end = text_task(model, [RECORDS[0]], TextOptions(response_only=True))
    assert (without_end.batch([0], CPU, 0)["weights"][:, :-1] > 0).all()
    with pytest.raises(InputError, match="a.jsonl line 1 has no token to predict"):
        text_task(model, [record], TextOptions(response_only=True, long=LongTextPolicy.TRUNCATE, max_length=4))


def test_masks_come_from_the_seed_the_step_and_the_text_alone(tmp_path: Path) -> None:
    model = model_for(tmp_path, "bert", TaskName.MASKED_LM)
    task = text_task(model, RECORDS, seed=7)
    first = task.batch([0, 2], CPU, step=3)
    again = text_task(model, RECORDS[2:], seed=7).batch([0], CPU, step=3)  # other records taken away
    length = int(again["attention_mask"].sum())
    assert torch.equal(first["input_ids"][1, :length], again["input_ids"][0])
    assert torch.equal(first["weights"][1, :length], again["weights"][0])
    assert any(not torch.equal(first["input_ids"], task.batch([0, 2], CPU, s)["input_ids"]) for s in range(4, 8))
    assert not torch.equal(
        torch.stack([task.batch([2], CPU, s)["weights"] for s in range(9)]),
        torch.stack([text_task(model, RECORDS, seed=8).batch([2], CPU, s)["weights"] for s in range(9)]),
    )


def test_masks_have_the_published_proportions(tmp_path: Path) -> None:
    model = model_for(tmp_path, "bert", TaskName.MASKED_LM)
    task = text_task(model, [TextRecord(stretch=Stretch("a"), text=" ".join(["cat", "dog", "mat"] * 12))])
    cat_dog_mat = task.batch([0], CPU, 0)["targets"][0]
    asked = hidden = kept = 0
    steps = 1000
    for step in range(steps):
        batch = task.batch([0], CPU, step)
        where = batch["weights"][0] > 0
        assert where.any()
        assert batch["weights"].sum().item() == pytest.approx(1)
        assert not where[0]  # <bos>
        assert not where[-1]  # <eos>
        assert torch.equal(batch["input_ids"][0][~where], cat_dog_mat[~where])
        inputs = batch["input_ids"][0][where]
        asked += len(inputs)
        hidden += int((inputs == 4).sum())
        kept += int((inputs == cat_dog_mat[where]).sum())
    assert asked / (steps * 36) == pytest.approx(0.15, abs=0.005)
    assert hidden / asked == pytest.approx(0.8, abs=0.02)
    assert kept / asked == pytest.approx(0.1, abs=0.02)  # replaced ones are rarely the same by chance


def test_micro_batches_are_ordered_by_length_and_bounded(tmp_path: Path) -> None:
    lengths = [3, 9, 1, 7, 7, 2]
    groups = list(group_by_length(range(6), lengths.__getitem__, 3, 14))
    assert groups == [[1], [3, 4], [0, 5, 2]]
    assert list(group_by_length([], lengths.__getitem__, 3)) == []
    assert list(group_by_length(range(6), lengths.__getitem__, 3, 1)) == [[1], [3], [4], [0], [5], [2]]
    with pytest.raises(ValueError, match="holds nothing"):
        list(group_by_length([0], lengths.__getitem__, 0))
    task = task_for(model_for(tmp_path, "gpt2", TaskName.CAUSAL_LM))
    groups = list(task.micro_batches(np.array([4, 2, 0]), 0, 2, 64))  # type: ignore[arg-type]
    assert groups == [[2, 0], [4]]


def test_images_are_scaled_as_the_model_says(tmp_path: Path) -> None:
    task = image_task(model_for(tmp_path, "vit", TaskName.IMAGE_CLASSIFICATION), IMAGES)
    batch = task.batch([2, 0], CPU, 0)
    expected = torch.from_numpy(IMAGES.pixels[[2, 0]]).permute(0, 3, 1, 2) / 127.5 - 1
    assert torch.allclose(batch["pixel_values"], expected, atol=1e-6)
    assert batch["labels"].tolist() == [2, 0]
    floats = ImageSet(pixels=expected.numpy(), labels=("a", "b"), places=["x", "y"])
    other = image_task(model_for(tmp_path, "vit", TaskName.IMAGE_CLASSIFICATION), floats)
    assert torch.equal(other.batch([0], CPU, 0)["pixel_values"], expected[:1])


def test_images_and_labels_that_do_not_fit(tmp_path: Path) -> None:
    model = model_for(tmp_path, "vit", TaskName.IMAGE_CLASSIFICATION)
    with pytest.raises(InputError, match=r"the images are 8x4 pixels and .* takes 8x8; give --resize 8 8, or"):
        image_task(model, ImageSet(pixels=IMAGES.pixels[:, :, :4], labels=IMAGES.labels, places=IMAGES.places))
    with pytest.raises(InputError, match="have 1 channels and"):
        image_task(model, ImageSet(pixels=IMAGES.pixels[..., :1], labels=IMAGES.labels, places=IMAGES.places))
    with pytest.raises(InputError, match="image 2 has the label 'd'"):
        image_task(model, ImageSet(pixels=IMAGES.pixels, labels=("a", "b", "d", "a", "b"), places=IMAGES.places))


def test_real_reviews(shared_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    lines = (shared_data / "text" / "sst2" / "dev.tsv").read_text(encoding="utf-8")
    path.write_text("text\tlabel\n" + lines, encoding="utf-8")
    records = read_texts(path, labelled=True)
    assert len(records) == 872
    labels = labels_of([record.label or "" for record in records], str(path))
    assert labels.names == ("0", "1")
    model = load_for_training(
        architecture(tmp_path / "bert", "bert", max_position_embeddings=64),
        TaskName.TEXT_CLASSIFICATION,
        labels=labels.names,
        vocabulary=private_vocabulary(frequent_words(records)),
    )
    task = text_task(model, records)
    measured = task.evaluate(model.network, CPU)
    assert measured["examples"] == 872
    assert 0.3 < measured["accuracy"] < 0.7
    optimizer = torch.optim.Adam(model.network.parameters(), lr=3e-3)
    for step in range(12):
        optimizer.zero_grad()
        for group in task.micro_batches(range(step * 64, step * 64 + 64), step, 64, 4096):
            task.losses(model.network, task.batch(group, CPU, step)).mean().backward()
        optimizer.step()
    assert task.evaluate(model.network, CPU)["loss"] < measured["loss"]


def test_a_real_model(shared_data: Path) -> None:
    model = load_for_training(shared_data / "stories260k", TaskName.CAUSAL_LM)
    assert (model.initial_weights, model.fresh, model.dropped) == ("checkpoint", (), ())
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    task = text_task(model, [TextRecord(stretch=Stretch("a"), text=story)])
    assert task.evaluate(model.network, CPU)["loss"] < 1.5
    reference = load_model(shared_data / "stories260k", device="cpu")
    assert torch.equal(next(reference.network.parameters()), next(model.network.parameters()))
