"""What is written is what was measured: transformers finds the same figures, and planted differences are refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from privctl.cli import run
from privctl.domain.report import PrivacyReport
from privctl.models import loading
from privctl.noise import placement
from privctl.noise.privatize import perplexity_of
from privctl.reports.files import read_report
from privctl.storage.atomic import writing
from privctl.train.methods.ferret import run as ferret
from privctl.train.release import model as release
from privctl.train.runs import gradient_training as training
from privctl.train.runs import setup
from tests.few import few
from tests.models.tasks.small import architecture, same_records, words

TEXTS = [
    " ".join(line)
    for line in zip(["the", "a", "old", "very"] * 10, ["cat", "dog", "mat", "sat", "on"] * 8, strict=True)
]
DP = ("dp-sgd", "--noise-multiplier", "1", "--delta", "1e-5")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t, "label": "ny"[i % 2]}) + "\n" for i, t in enumerate(TEXTS)))
    return path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    folder = architecture(tmp_path / "bert", "bert")
    words().tokenizer.save_pretrained(folder)
    return folder


def retrain(method: tuple[str, ...], model: Path, data: Path, output: Path, *more: str) -> int:
    call = [
        "retrain",
        method[0],
        str(model),
        "--data",
        str(data),
        "--held-out",
        str(same_records(data)),
        *method[1:],
        *more,
    ]
    few = [
        "--epochs",
        "1",
        "--batch-size",
        "10",
        "--learning-rate",
        "0.01",
        "--device",
        "cpu",
        "-q",
        "--micro-tokens",
        "160",
    ]
    return run([*call, *few, "-o", str(output)])


def measured(output: Path) -> dict[str, float | None]:
    return {evidence.quantity: evidence.estimate for evidence in report_of(output).evidence}


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def agrees(output: Path, logits: Tensor, labels: Tensor) -> None:
    found = measured(output)
    assert found["held-out accuracy"] == float((logits.argmax(-1) == labels).double().mean())
    assert found["held-out loss, nats"] == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-5)


def pixels_of(images: Path, output: Path) -> tuple[Tensor, Tensor]:
    """As anyone would who reads preprocessor_config.json."""
    archive = np.load(images)
    facts = json.loads((output / "preprocessor_config.json").read_text())
    shape = (1, 3, 1, 1)
    mean, std = (torch.tensor(facts[name]).view(shape) for name in ("image_mean", "image_std"))
    scaled = torch.from_numpy(archive["images"]).permute(0, 3, 1, 2) * facts["rescale_factor"]
    return (scaled - mean) / std, torch.from_numpy(archive["labels"])


IMAGES = ("--task", "image-classification", "--labels", "0,1")
TEXT = ("--task", "text-classification", "--labels", "n,y")


@pytest.mark.slow
@pytest.mark.parametrize("scratch", few([False, True], 0))
def test_a_trained_resnet_loads_with_transformers(scratch: bool, resnet: Path, images: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    more = ("--norm", "frozen", *(("--from-scratch",) if scratch else ()))
    assert retrain(DP, resnet, images, output, *IMAGES, *more) == 0
    network: Any = AutoModelForImageClassification.from_pretrained(output)
    pixels, labels = pixels_of(images, output)
    with torch.no_grad():
        agrees(output, network.eval()(pixels).logits, labels)
    before = AutoModelForImageClassification.from_pretrained(resnet)
    kept = {name: t for name, t in network.state_dict().items() if "running" in name}
    for name, statistic in kept.items():
        expected = torch.full_like(statistic, float("var" in name)) if scratch else before.state_dict()[name]
        assert torch.equal(statistic, expected)
    assert len(kept) == 12
    scales = [name for name, _ in network.named_parameters() if "normalization.weight" in name]
    assert scratch or not torch.equal(network.state_dict()[scales[0]], before.state_dict()[scales[0]])


@pytest.mark.slow
def test_a_trained_vit_loads_with_transformers(images: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert retrain(DP, architecture(tmp_path / "vit", "vit"), images, output, *IMAGES) == 0
    network: Any = AutoModelForImageClassification.from_pretrained(output)
    pixels, labels = pixels_of(images, output)
    with torch.no_grad():
        agrees(output, network(pixels).logits, labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        DP,
        pytest.param(("plain",), marks=pytest.mark.slow),
        pytest.param(("dpquant", *DP[1:], "--format", "luq-fp4", "--layers", "all"), marks=pytest.mark.slow),
    ],
)
def test_text_classifier(method: tuple[str, ...], bert: Path, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert retrain(method, bert, texts, output, *TEXT) == 0
    network: Any = AutoModelForSequenceClassification.from_pretrained(output)
    batch = AutoTokenizer.from_pretrained(output)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    agrees(output, logits, torch.arange(len(TEXTS)) % 2)


@pytest.mark.parametrize("lora", [pytest.param(False, marks=pytest.mark.slow), True])
def test_causal_language_model(lora: bool, start: Path, texts: Path, tmp_path: Path) -> None:
    if lora:
        pytest.importorskip("peft")
    assert retrain(("plain",), start, texts, tmp_path / "base") == 0
    output = tmp_path / "out"
    assert retrain(DP, tmp_path / "base", texts, output, *(("--lora-rank", "2") if lora else ())) == 0
    assert measured(output)["held-out perplexity"] == pytest.approx(perplexity(output), rel=1e-5)


def perplexity(folder: Path) -> float:
    """By transformers' own loss, text by text, with the token that ends a text."""
    network: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    total, tokens = 0.0, 0
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert ids[0, -1] == tokenizer.eos_token_id
        with torch.no_grad():
            total += float(network(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return float(np.exp(total / tokens))


def nudged(network: nn.Module, _: object) -> nn.Module:
    """One number of one layer changed after measuring."""
    with torch.no_grad():
        list(network.parameters())[-2].view(-1)[0] += 0.5
    return network


def edited(**changes: Any) -> Callable[..., Iterator[tuple[str, bytes]]]:
    genuine = release._companions

    def companions(network: Any, companion: Any) -> Iterator[tuple[str, bytes]]:
        for name, content in genuine(network, companion):
            data = json.loads(content) if name == "config.json" else {}
            yield name, json.dumps(data | changes).encode() if data else content

    return companions


def other_tokens(network: Any, companion: Any) -> Iterator[tuple[str, bytes]]:
    for name, content in GENUINE(network, companion):
        yield name, content.replace(b'"Lowercase"', b'"NFKC"') if name == "tokenizer.json" else content


GENUINE = release._companions
FAULTS: dict[str, tuple[object, str, Any, str]] = {
    "a layer": (training, "merged", nudged, "its answers differ by"),
    "an activation": (release, "_companions", edited(hidden_act="relu"), "config.json has hidden_act 'relu'"),
    "an epsilon": (release, "_companions", edited(layer_norm_eps=1e-3), "config.json has layer_norm_eps 0.001"),
    "the classes' order": (
        release,
        "_companions",
        edited(id2label={"0": "y", "1": "n"}, label2id={"y": 0, "n": 1}),
        "config.json has id2label",
    ),
    "layers": (release, "_companions", edited(num_hidden_layers=1), "has no place for bert.encoder.layer.1"),
    "words": (release, "_companions", other_tokens, "its tokenizer makes other tokens"),
    "a tensor": (
        release,
        "named_tensors",
        lambda network: {n: t for n, t in network.state_dict().items() if n != "classifier.bias"},
        "transformers finds no classifier.bias",
    ),
    "a value": (
        release,
        "named_tensors",
        lambda network: {n: t + (n == "classifier.bias") * 1e-6 for n, t in network.state_dict().items()},
        "transformers loads another classifier.bias",
    ),
}  # fmt: skip


# In quick tests one fault of the configuration, one of the words and one of the weights.
@pytest.mark.parametrize(
    "fault",
    [name if name == "a value" else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS],
)
def test_a_planted_difference_is_refused_and_nothing_is_lost(
    fault: str, bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here what goes wrong does so only after the training."""
    module, name, planted, reason = FAULTS[fault]
    output = tmp_path / "out"
    before = sorted(tmp_path.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, planted)
        patch.setattr(setup, "rehearse", lambda *_: None)
        assert retrain(DP, bert, texts, output, *TEXT) == 3
    stderr = capsys.readouterr().err
    assert reason in stderr
    assert "nothing was written" in stderr
    assert f"the training is saved in {output}.run, so continue with --resume" in stderr
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "out.run"])
    assert retrain(DP, bert, texts, output, *TEXT, "--resume") == 0
    report = report_of(output)
    assert (report.parameters["updates"], report.parameters["steps_begun"]) == (4, 4)
    assert measured(output)["held-out accuracy"] is not None


#: Faults that show before a training is begun.
BEFORE = [name for name in FAULTS if name != "a layer"]


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        *((DP, name) for name in BEFORE),
        # Every method loads and writes its model in the same way.
        *(
            pytest.param(method, name, marks=pytest.mark.slow)
            for method in (("plain",), ("ferret", "--epsilon", "8", "--release", "gaussian"))
            for name in BEFORE
        ),
    ],
)
def test_what_cannot_be_released_is_not_begun(
    method: tuple[str, ...], fault: str, bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, planted, _ = FAULTS[fault]
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(module, name, planted)
    assert retrain(method, bert, texts, tmp_path / "out", *TEXT) == 3
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_a_signs_run_leaves_no_stream_either(start: Path, texts: Path, tmp_path: Path) -> None:
    output, signs = tmp_path / "out", ("ferret", "--release", "gaussian", "--epsilon", "8", "--fire-probability", "0.5")
    before = sorted(tmp_path.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ferret, "merged", nudged)
        assert retrain(signs, start, texts, output) == 3
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "out.run"])
    assert retrain(signs, start, texts, output, "--resume") == 0
    assert output.with_name("out.updates.safetensors").is_file()


def test_group_normalisation_in_place_of_batch_normalisation_is_refused(
    resnet: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would make up the running statistics that such a model has not."""

    def swap(_path: Path, network: nn.Module, *_: str | None) -> tuple[str, ...]:
        for name, module in list(network.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                network.set_submodule(name, nn.GroupNorm(2, module.num_features), strict=True)
        return ()

    monkeypatch.setattr(loading, "checked_batch_norms", swap)
    assert retrain(DP, resnet, images, tmp_path / "out", *IMAGES) == 3
    assert "transformers finds no resnet.embedder.embedder.normalization.num_batches" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.run").exists()


def test_noise_evaluates_what_it_releases(
    start: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["noise", str(tmp_path / "base"), "--epsilon", "100", "--evaluate", str(texts), "-q"]
    assert retrain(("clipped", "--optimizer", "sgd"), start, texts, tmp_path / "base") == 0
    assert run([*call, "-o", str(tmp_path / "noised")]) == 0
    found = perplexity_of(report_of(tmp_path / "noised"))
    assert found == pytest.approx(perplexity(tmp_path / "noised"), rel=1e-5)
    capsys.readouterr()
    kept = tuple(name for name in placement.COMPANIONS if not name.startswith("tokenizer"))
    monkeypatch.setattr(placement, "COMPANIONS", kept)
    assert run([*call, "-o", str(tmp_path / "bare")]) == 3
    assert "has no tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "bare").exists()


def test_a_disk_that_is_full_after_the_training_is_no_reason_to_train_again(
    bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another folder, which is the advice before a training, would cost the privacy of a second one."""
    output = tmp_path / "out"

    def full(*_: object, **__: object) -> NoReturn:
        with writing(output):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "commit_with_report", full)
        assert retrain(DP, bert, texts, output, *TEXT) == 4
    stderr = capsys.readouterr().err
    assert "does not fit: No space left on device; mend that, then continue with --resume and the same" in stderr
    assert retrain(DP, bert, texts, output, *TEXT, "--resume") == 0
    assert report_of(output).parameters["steps_begun"] == 4
