"""Images of several labels, or with a number: read, trained, measured and scored as texts are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import privctl
from audits.scores.subject import load_subject, read
from audits.scores.table import FIELDS
from privctl.data.columns import Columns, HeadKind
from privctl.data.images import read_images
from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.tasks.build import image_task
from tests.models.tasks.small import architecture, one_by_one
from tests.models.tasks.test_heads import LABELS, NAMES, PROBLEMS, TARGETS
from tests.train.clipping.support import agree

CPU = torch.device("cpu")


def model_for(folder: Path, problem: HeadKind) -> TrainingModel:
    number = problem is HeadKind.NUMBER
    start = architecture(folder, "vit", problem_type=str(problem), **({"num_labels": 1} if number else {}))
    return load_for_training(start, TaskName.IMAGE_CLASSIFICATION, labels=None if number else NAMES, seed=3)


def write(path: Path, problem: HeadKind, copies: int = 1, seed: int = 0) -> Path:
    """Noise, in parquet with lists of names or numbers, or in an .npz with flags or numbers."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5 * copies, 8, 8, 3), dtype=np.uint8)
    if path.suffix == ".npz":
        targets = np.tile(np.array(TARGETS[problem]), (copies, 1))
        np.savez(path, images=pixels, labels=targets if problem is HeadKind.SEVERAL else targets[:, 0])
        return path
    images = []
    for each in pixels:
        content = io.BytesIO()
        Image.fromarray(each).save(content, "PNG")
        images.append({"bytes": content.getvalue(), "path": None})
    labels: list[Any] = LABELS[problem] * copies
    if problem is HeadKind.SEVERAL:
        labels = [label if isinstance(label, list) else [label] for label in labels]
    else:
        labels = [float(label) for label in labels]
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    return path


@pytest.mark.parametrize("problem", PROBLEMS)
def test_losses_measures_and_scores(tmp_path: Path, problem: HeadKind) -> None:
    model, columns = model_for(tmp_path / "m", problem), Columns(problem=problem)
    images = read_images(write(tmp_path / "a.parquet", problem), columns=columns)
    task, order = image_task(model, images), [3, 0, 2, 4, 1]
    batch = task.batch(order, CPU, 0)
    assert batch["labels"].tolist() == [TARGETS[problem][i] for i in order]
    found = task.losses(model.network, batch).detach()
    assert torch.allclose(found, one_by_one(task, model.network, order, 0), atol=1e-5)
    labels = batch["labels"][:, 0] if problem is HeadKind.NUMBER else batch["labels"]
    theirs = model.network(pixel_values=batch["pixel_values"], labels=labels).loss.item()
    assert found.mean().item() == pytest.approx(theirs / 2 if problem is HeadKind.NUMBER else theirs, abs=1e-5)
    assert len(set(task.keys(range(5)))) == 5

    def losses(network: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return task.losses(network, rows)

    agree(model.network, losses, batch)
    assert ("micro_f1" if problem is HeadKind.SEVERAL else "squared_error") in task.evaluate(model.network, CPU)

    model.network.save_pretrained(tmp_path / "saved")
    model.companion.save_pretrained(tmp_path / "saved")
    subject = load_subject(tmp_path / "saved", device="cpu")
    scores = subject.scorer.score(subject.rows(read(subject, tmp_path / "a.parquet")).rows)[FIELDS.index("lp")]
    with torch.no_grad():
        each = one_by_one(task, model.network, range(5), 0).numpy()
    assert np.allclose(scores, -each * (len(NAMES) if problem is HeadKind.SEVERAL else 1), atol=1e-4)


def test_flags_and_numbers_of_arrays(tmp_path: Path) -> None:
    several, number = (Columns(problem=problem) for problem in PROBLEMS)
    found = read_images(write(tmp_path / "a.npz", HeadKind.SEVERAL), columns=several).labels
    assert [json.loads(each) for each in found] == [["0"], [], ["0", "2"], ["1"], ["0", "1", "2"]]
    assert read_images(write(tmp_path / "b.npz", HeadKind.NUMBER), columns=number).labels == (
        "0.5", "-2.0", "3.0", "1.25", "0.0")  # fmt: skip
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    for labels, columns, fault in (
        (np.array([[0, 2], [1, 0]]), several, "image 0 has a flag other than 0 and 1"),
        (
            np.array([0, 1]),
            several,
            r"expected flags of shape \(images, labels\), as the model's",
        ),
        (np.array([0.5, np.inf]), number, "image 1 has a label that is no finite number"),
        (np.array(["a", "b"]), number, "expected one number per image"),
    ):
        np.savez(tmp_path / "c.npz", images=pixels, labels=labels)
        with pytest.raises(InputError, match=fault):
            read_images(tmp_path / "c.npz", columns=columns)
    Image.fromarray(pixels[0]).save((tmp_path / "d" / "a").mkdir(parents=True) or tmp_path / "d" / "a" / "1.png")
    with pytest.raises(InputError, match="gives each image the one label of its folder"):
        read_images(tmp_path / "d", columns=several)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_private_training(tmp_path: Path, problem: HeadKind) -> None:
    model = model_for(tmp_path / "start", problem)
    for part in (model.network, model.companion):
        part.save_pretrained(tmp_path / "m")
    data = write(tmp_path / "a.parquet", problem, 4)
    report = privctl.retrain(
        "dp-sgd", tmp_path / "m", data=data, held_out=write(tmp_path / "b.parquet", problem, 2, 1),
        output=tmp_path / "out", steps=2, batch_size=4, epsilon=8, delta=1e-2,
    )  # fmt: skip
    quantity = "held-out micro F1" if problem is HeadKind.SEVERAL else "held-out mean squared error"
    assert quantity in {item.quantity for item in report.evidence}
    others = write(tmp_path / "c.parquet", problem, 4, 2)
    audited = privctl.audit(tmp_path / "out", members=data, nonmembers=others, output=tmp_path / "r.json")
    assert audited.parameters["task"] == "image-classification"
