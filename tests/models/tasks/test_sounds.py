"""Classifiers of sounds: batches, losses, scores, and a private training with its audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForAudioClassification, Wav2Vec2FeatureExtractor, pipeline

import privctl
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import SoundSubject, load_subject, read
from audits.scores.table import FIELDS
from privctl.cli import run as main
from privctl.data.sounds import read_sounds
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import TaskName
from privctl.models.loading import TrainingModel, load_for_training
from privctl.models.sounds import sound_facts
from privctl.models.tasks.build import sound_task
from privctl.models.tasks.sounds import SoundClassification
from tests.models.tasks.small import one_by_one
from tests.train.clipping.support import agree
from tests.zoo.shrink import SAMPLES, build, write_data, write_wav

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("wav2vec2") / "m"
    build("audio-classification", "wav2vec2", folder)
    return folder


def stated(folder: Path, **changes: Any) -> None:
    """Change the model's preprocessor_config.json; None removes a key."""
    path = folder / "preprocessor_config.json"
    kept = {name: value for name, value in (json.loads(path.read_text()) | changes).items() if value is not None}
    path.write_text(json.dumps(kept))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that normalises each frame by itself, and is told what is filled up."""
    folder: Path = tmp_path_factory.mktemp("masked") / "m"
    build("audio-classification", "wav2vec2", folder)
    config = AutoConfig.from_pretrained(folder, feat_extract_norm="layer", do_stable_layer_norm=True)
    AutoModelForAudioClassification.from_config(config).save_pretrained(folder)
    return folder


def task_of(folder: Path, data: Path) -> tuple[TrainingModel, SoundClassification]:
    model = load_for_training(folder, TaskName.AUDIO_CLASSIFICATION)
    task = sound_task(model, read_sounds(data, rate=16000))
    assert isinstance(task, SoundClassification)
    return model, task


def test_losses_are_each_sounds_own(masked: Path, tmp_path: Path, one_thread: None) -> None:
    """Filled up to one length with a mask: each loss is transformers' own of the sound without anything filled up."""
    data = write_data("audio-classification", tmp_path / "d", count=6)
    model, task = task_of(masked, data)
    assert len({len(feature) for feature in task.features}) > 1
    order = [4, 0, 3, 1, 5]
    batch = task.batch(order, CPU, 0)
    assert batch["input_values"].shape == batch["attention_mask"].shape == (5, SAMPLES)
    found = task.losses(model.network, batch).detach()
    assert torch.allclose(found, one_by_one(task, model.network, order, 0), atol=1e-5)
    reader = Wav2Vec2FeatureExtractor()
    sounds = read_sounds(data, rate=16000)
    for row, place in enumerate(order):
        inputs = reader(sounds.waves[place], sampling_rate=16000, return_tensors="pt")
        theirs = model.network(**inputs, labels=torch.tensor([task.labels[place]])).loss
        assert found[row].item() == pytest.approx(theirs.item(), abs=1e-5)
    assert len(set(task.keys(range(6)))) == 6
    assert {"loss", "accuracy", "examples"} == task.evaluate(model.network, CPU).keys()

    def losses(network: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return task.losses(network, rows)

    agree(model.network, losses, batch)


def test_scores_are_the_negative_losses(model_folder: Path, tmp_path: Path) -> None:
    data = write_data("audio-classification", tmp_path / "d", count=6)
    model, task = task_of(model_folder, data)
    subject = load_subject(model_folder, device="cpu")
    assert isinstance(subject, SoundSubject)
    assert subject.describe() == {"task": "audio-classification", "max_length": SAMPLES}
    rows = subject.rows(read(subject, data))
    scores = compute_scores(plan_scoring(subject.scorer, rows.rows))
    lp = scores.take(rows.rows, np.ones(6, np.int64))[FIELDS.index("lp")]
    model.network.eval()
    with torch.no_grad():
        losses = task.losses(model.network, task.batch(range(6), CPU, 0))
    np.testing.assert_allclose(lp, -losses.numpy(), atol=1e-4)


def test_sounds_of_no_stated_length(tmp_path: Path) -> None:
    """They are scored beside those of their length alone, and trained on only if all have one."""
    folder = tmp_path / "m"
    build("audio-classification", "wav2vec2", folder)
    stated(folder, max_length=None)
    data = write_data("audio-classification", tmp_path / "d", count=6)
    with pytest.raises(InputError, match="give --max-length N, in samples, to which every sound is cut or filled up"):
        task_of(folder, data)
    subject = load_subject(folder, device="cpu")
    rows = subject.rows(read(subject, data)).rows
    together = compute_scores(plan_scoring(subject.scorer, rows)).take(rows, np.ones(6, np.int64))
    for i, row in enumerate(rows):
        alone = compute_scores(plan_scoring(subject.scorer, [row])).values[:, 0]
        np.testing.assert_allclose(together[:, i], alone, atol=1e-4)


def test_faulty_configurations_of_sound_models_are_refused(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--dropout does not apply to the task audio-classification"):
        load_for_training(model_folder, TaskName.AUDIO_CLASSIFICATION, dropout=True)
    config = load_for_training(model_folder, TaskName.AUDIO_CLASSIFICATION).network.config
    (tmp_path / "preprocessor_config.json").write_text('{"sampling_rate": 1e12}')
    with pytest.raises(InputError, match="has 1000000000000.0 as 'sampling_rate'"):
        sound_facts(tmp_path, config)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "ASTFeatureExtractor"}')
    with pytest.raises(InputError, match="does not describe a Wav2Vec2FeatureExtractor"):
        sound_facts(tmp_path, config)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"has no preprocessor_config\.json, which says how sounds are read"):
        sound_facts(tmp_path, config)


def write(folder: Path, seed: int, count: int = 20) -> Path:
    """Tones of two heights in noise, a class folder each."""
    random = np.random.default_rng(seed)
    for i in range(count):
        where = folder / ("high" if i % 2 else "low")
        where.mkdir(parents=True, exist_ok=True)
        step = 0.9 if i % 2 else 0.2
        samples = 0.4 * np.sin(step * np.arange(random.integers(1200, 1500))) + random.normal(scale=0.1)
        write_wav(where / f"{i}.wav", samples)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("method", ["plain", "dp-sgd", "dpquant", "ferret"])
def test_every_way_to_train(method: str, masked: Path, tmp_path: Path) -> None:
    """Trained, verified and audited; transformers' own pipeline is as right as the report says."""
    data, others, output = write(tmp_path / "d", 0), write(tmp_path / "o", 1), tmp_path / "out"
    more: dict[str, Any] = {} if method == "plain" else {"epsilon": 8, "delta": 1e-2}
    more |= {"ferret": {"release": "gaussian"}, "dpquant": {"format": "int4"}}.get(method, {})
    report = privctl.retrain(
        method, masked, data=data, held_out=others, output=output, labels="high,low", max_length=1500, steps=2,
        batch_size=6, device="cpu", **more,
    )  # fmt: skip
    assert report.parameters["task"] == "audio-classification"
    assert json.loads((output / "preprocessor_config.json").read_text())["max_length"] == 1500
    verified = privctl.verify(tmp_path / "out.report.json", data=data)
    assert verified.exit_code == 0
    audited = privctl.audit(
        output, members=data, nonmembers=others, output=tmp_path / "r.json", thorough=True, device="cpu"
    )
    assert audited.parameters["task"] == "audio-classification"
    accuracy = {item.quantity: item.estimate for item in report.evidence}["held-out accuracy"]
    tell: Any = pipeline("audio-classification", model=str(output), device="cpu", top_k=1)  # type: ignore[call-overload]
    sounds = read_sounds(others, rate=16000)
    right = []
    for wave, label in zip(sounds.waves, sounds.labels, strict=True):
        predictions = tell({"raw": np.array(wave), "sampling_rate": 16000})  # without what is filled up
        right.append(predictions[0]["label"] == label)
    assert np.mean(right) == accuracy


@pytest.mark.slow
def test_shadow_models_and_the_command_line(masked: Path, tmp_path: Path) -> None:
    data, others = write(tmp_path / "d", 0), write(tmp_path / "o", 1, 6)
    shared = ["--task", "audio-classification", "--labels", "high,low", "--data", str(data), "--max-length", "1500",
              "--steps", "2", "--batch-size", "6", "--device", "cpu", "-q"]  # fmt: skip
    assert main(["shadow", str(masked), *shared, "--count", "4", "-o", str(tmp_path / "s")]) == 0
    call = ["retrain", "dp-sgd", str(masked), *shared, "--epsilon", "8", "--delta", "1e-2"]
    assert main([*call, "--held-out", str(others), "-o", str(tmp_path / "out")]) == 0
    assert main(["verify", str(tmp_path / "out.report.json"), "--data", str(data), "-q"]) == 0
    assert main([*call, "--unit", "who", "-o", str(tmp_path / "other")]) == 2
    both = [part for path in (data, others) for part in ("--evaluate", str(path))]
    assert main(["noise", str(tmp_path / "out"), *both, "--noise-stddev", "0.01", "-o", str(tmp_path / "n"), "-q"]) == 0
