"""The numbers that scale images and sounds are released with the weights: those of the private images void all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import ASTFeatureExtractor, Wav2Vec2FeatureExtractor

from privctl.cli import run
from privctl.data.pixels import ImageFacts, are_own_statistics, is_published
from privctl.domain.errors import ExitCode
from privctl.domain.guarantee import AssumptionState, Status
from privctl.models.sounds import SoundFacts
from privctl.reports.files import read_report
from privctl.train.release.names import released_names
from tests.models.tasks.small import architecture

FACTS = ImageFacts(channels=3, size=None, mean=(0.5,) * 3, std=(0.5,) * 3)


def images(count: int = 40) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Images whose channels differ in brightness, and which differ from each other."""
    drawn = np.random.default_rng(3)
    bright = np.array([90, 120, 150]) + drawn.integers(-40, 40, (count, 1, 1, 1))
    return np.clip(bright + drawn.normal(0, 30, (count, 16, 16, 3)), 0, 255).astype(np.uint8)


def scaled_by(mean: Any, std: Any) -> ImageFacts:
    return replace(FACTS, mean=tuple(map(float, mean)), std=tuple(map(float, std)))


def test_the_statistics_of_the_images_are_told_from_others() -> None:
    pixels = images()
    values = pixels / 255
    mean, std, of_images = values.mean((0, 1, 2)), values.std((0, 1, 2)), values.std((1, 2)).mean(0)
    assert are_own_statistics(scaled_by(mean, std), pixels)
    assert are_own_statistics(scaled_by(mean.round(3), of_images.round(3)), pixels)
    assert are_own_statistics(scaled_by(mean, (1, 1, 1)), pixels), "the means alone, which no other images have"
    assert are_own_statistics(replace(scaled_by(255 * mean, 255 * std), factor=1.0), pixels)
    assert not are_own_statistics(scaled_by(mean + 0.002, std), pixels)
    assert not are_own_statistics(scaled_by((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), pixels)
    assert not are_own_statistics(scaled_by(mean, std), values.astype(np.float32).transpose(0, 3, 1, 2)), "unscaled"
    grey = np.repeat(pixels[..., :1], 3, 3)
    one, spread = grey.mean() / 255, grey.std() / 255
    assert are_own_statistics(scaled_by((one,) * 3, (spread,) * 3), grey)
    assert not are_own_statistics(scaled_by((one,) * 3, (spread + 0.01,) * 3), grey), "one number agrees by chance"


def test_constants_and_the_numbers_of_published_models_say_nothing_of_data() -> None:
    assert is_published(FACTS)
    assert is_published(ImageFacts(channels=1, size=None, mean=(0.0,), std=(1.0,)))
    assert is_published(scaled_by((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert not is_published(scaled_by((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))


def trained(folder: Path, name: str, mean: Any, std: Any) -> Path:
    """The report of a private training whose model's folder states these numbers."""
    net, pixels = architecture(folder / f"net-{name}", "resnet"), images()
    scaling = {"do_normalize": True, "image_mean": list(map(float, mean)), "image_std": list(map(float, std))}
    (net / "preprocessor_config.json").write_text(json.dumps(scaling))
    np.savez(folder / "data.npz", images=pixels, labels=np.arange(len(pixels)) % 2)
    asked = [
        "--data",
        str(folder / "data.npz"),
        "--task",
        "image-classification",
        "--labels",
        "0,1",
        "--norm",
        "frozen",
    ]
    asked += ["--epochs", "1", "--batch-size", "10", "--noise-multiplier", "1", "--device", "cpu"]
    assert run(["retrain", "dp-sgd", str(net), *asked, "-o", str(folder / name)]) == 0
    return folder / f"{name}.report.json"


def test_a_model_that_scales_by_the_private_images_has_no_guarantee(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = images() / 255
    mean, std = values.mean((0, 1, 2)).round(4), values.std((0, 1, 2)).round(4)
    own = trained(tmp_path, "own", mean, std)
    assert "scale its inputs were collected from the private examples" in " ".join(capsys.readouterr().err.split())
    report = read_report(own)
    assert report.guarantees[0].status is Status.VOID
    assert report.parameters["collected_from_data"] == ["scaling"]
    assert run(["verify", str(own), "-q"]) == ExitCode.OK
    edited = json.loads(own.read_text())
    (guarantee,) = edited["guarantees"]
    guarantee["status"] = "conditional"
    for assumption in guarantee["assumptions"]:
        if assumption["name"] == "scaling":
            assumption["state"] = "asserted"
    own.write_text(json.dumps(edited))
    assert run(["verify", str(own), "-q"]) == ExitCode.REFUTED

    other = trained(tmp_path, "other", mean + 0.01, std)
    report = read_report(other)
    assert report.guarantees[0].status is Status.CONDITIONAL
    (state,) = [each.state for each in report.guarantees[0].assumptions if each.name == "scaling"]
    assert state is AssumptionState.ASSERTED
    assert run(["verify", str(other), "-q"]) == ExitCode.OK

    default = trained(tmp_path, "default", (0.5,) * 3, (0.5,) * 3)
    assert "scaling" not in [each.name for each in read_report(default).guarantees[0].assumptions]


@pytest.mark.parametrize(
    ("extractor", "asserted"),
    [
        (Wav2Vec2FeatureExtractor(), False),
        (ASTFeatureExtractor(), False),
        (ASTFeatureExtractor(mean=-3.1, std=2.2), True),
    ],
    ids=["samples", "as published", "own numbers"],
)
def test_an_extractor_with_other_numbers_is_asserted_to_be_public(extractor: Any, asserted: bool) -> None:
    facts = SoundFacts(extractor=extractor, masked=False)
    job: Any = SimpleNamespace(
        model=SimpleNamespace(images=None, sounds=facts, text=None, initial_weights="checkpoint",
                              vocabulary_from_private_data=False),
        request=SimpleNamespace(model=SimpleNamespace(vocabulary=None, adapter_only=False),
                                data=SimpleNamespace(labels=())),
        task=SimpleNamespace(name="audio-classification"),
        labels_from_private_data=False,
    )  # fmt: skip
    assert ("scaling" in [each.name for each in released_names(job)]) is asserted
