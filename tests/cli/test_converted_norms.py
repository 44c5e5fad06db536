"""``--convert batch-norm``: what plain transformers loads has the accuracy that the report states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from transformers import AutoModelForImageClassification, MobileNetV2Config, pipeline

from privctl.cli import run
from privctl.domain.guarantee import AssumptionState
from privctl.models import loading
from privctl.models.choices import TaskName
from tests.cli.test_written_models import DP, IMAGES, agrees, measured, pixels_of, report_of, retrain
from tests.few import few


def mobile(folder: Path) -> Path:
    """Another family with running statistics of its own."""
    torch.manual_seed(0)
    network: Any = AutoModelForImageClassification.from_config(
        MobileNetV2Config(image_size=8, depth_multiplier=0.25, finegrained_output=False, output_stride=8)
    )
    for _ in range(20):
        network.train()(torch.randn(16, 3, 8, 8) + 0.5)
    network.save_pretrained(folder)
    return folder


CLIPPED = ("clipped", "--optimizer", "sgd")
FERRET = ("ferret", *DP[1:], "--release", "gaussian")
DPQUANT = ("dpquant", *DP[1:], "--optimizer", "sgd", "--format", "luq-fp4", "--layers", "all")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("resnet", (*DP, "--optimizer", "sgd")),
        pytest.param("resnet", CLIPPED, marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", (*DP, "--optimizer", "sgd"), marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", CLIPPED, marks=pytest.mark.slow),
        pytest.param("resnet", FERRET, marks=pytest.mark.slow),
        pytest.param("resnet", DPQUANT, marks=pytest.mark.slow),
    ],
)
def test_converted_batch_normalisation(
    family: str, method: tuple[str, ...], resnet: Path, images: Path, tmp_path: Path
) -> None:
    """Plain transformers, by its own pipeline, has the accuracy that the report states, and no statistics are left."""
    start = resnet if family == "resnet" else mobile(tmp_path / "mobile")
    output = tmp_path / "out"
    assert retrain(method, start, images, output, *IMAGES, "--convert", "batch-norm") == 0
    network: Any = AutoModelForImageClassification.from_pretrained(output)
    pixels, labels = pixels_of(images, output)
    with torch.no_grad():
        agrees(output, network.eval()(pixels).logits, labels)
    report = report_of(output)
    tell = pipeline("image-classification", model=str(output), device="cpu", top_k=1)
    pictures = [Image.fromarray(array) for array in np.load(images)["images"]]
    predicted = torch.tensor([int(tell(picture)[0]["label"]) for picture in pictures])
    assert measured(output)["held-out accuracy"] == float((predicted == labels).double().mean())
    statistics = {name: t for name, t in network.state_dict().items() if "running" in name}
    assert len(statistics) >= 12
    assert all((t == float("var" in name)).all() for name, t in statistics.items())
    assert report.parameters["converted"] == "batch-norm"
    for guarantee in report.guarantees:
        states = {a.name: a.state for a in guarantee.assumptions}
        assert states["normalisation statistics"] is AssumptionState.ENFORCED
        assert states["starting weights"] is AssumptionState.ASSERTED
    assert run(["verify", str(output), "-q"]) == 0
    if method is FERRET:
        stream, again = output.with_name("out.updates.safetensors"), tmp_path / "again"
        assert run(["retrain", "ferret", str(start), "--replay", str(stream), "-o", str(again), "-q"]) == 0
        first, second = (load_file(folder / "model.safetensors") for folder in (output, again))
        assert all((first[name] == second[name]).all() for name in first.keys() | second.keys())


@pytest.mark.parametrize("family", few(["resnet", "mobilenet_v2"], 0))
def test_the_conversion_changes_no_answer(family: str, resnet: Path, tmp_path: Path) -> None:
    start = resnet if family == "resnet" else mobile(tmp_path / "mobile")
    before: Any = AutoModelForImageClassification.from_pretrained(start)
    loaded = loading.load_for_training(start, TaskName.IMAGE_CLASSIFICATION, convert="batch-norm")
    pixels = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected, found = before.eval()(pixels).logits, loaded.network(pixels).logits
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert not torch.equal(dict(loaded.network.named_parameters())[NORM[family]], before.get_parameter(NORM[family]))


NORM = {
    "resnet": "resnet.embedder.embedder.normalization.weight",
    "mobilenet_v2": "mobilenet_v2.conv_stem.first_conv.normalization.weight",
}


def test_statistics_that_are_left_are_refuted(resnet: Path, images: Path, tmp_path: Path) -> None:
    """A report that says they were moved, of a model that keeps them."""
    output = tmp_path / "out"
    assert retrain(("plain",), resnet, images, output, *IMAGES, "--norm", "frozen") == 0
    report_path = output.with_name("out.report.json")
    data = json.loads(report_path.read_text())
    data["parameters"]["converted"] = "batch-norm"
    report_path.write_text(json.dumps(data))
    assert run(["verify", str(report_path), "-q"]) == 1


def test_noise_on_a_converted_model(resnet: Path, images: Path, tmp_path: Path) -> None:
    """Statistics of 0 and 1 get no noise and need none; those of the data would be left as they are, unprotected."""
    output = tmp_path / "out"
    assert retrain(CLIPPED, resnet, images, output, *IMAGES, "--convert", "batch-norm") == 0
    assert run(["noise", str(output), "--epsilon", "8", "-q", "-o", str(tmp_path / "private")]) == 0
    assert run(["verify", str(tmp_path / "private"), "-q"]) == 0


@pytest.mark.parametrize(
    ("more", "because"),
    [
        (("--convert", "batch-norm", "--norm", "frozen"), "remove --norm frozen"),
        (("--convert", "group-norm"), "--convert"),
    ],
)
def test_conversions_that_are_refused(
    more: tuple[str, ...], because: str, resnet: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retrain(DP, resnet, images, tmp_path / "out", *IMAGES, *more) == 2
    assert because in capsys.readouterr().err
