"""Adapters trained on a base in 4 bits: what is measured is what transformers, bitsandbytes and peft load."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.models.four_bit import in_four_bits, in_full_precision, settings_for_transformers
from privctl.models.language import load_model
from privctl.reports.files import read_report
from tests.models.tasks.small import architecture, words

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
bitsandbytes = pytest.importorskip("bitsandbytes")

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
CPU = torch.device("cpu")
TRAIN = ("--data", "train.jsonl", "--held-out", "other.jsonl", "--batch-size", "8", "--epochs", "2", "--device", "cpu")
QLORA = ("--lora-rank", "2", "--save-adapter", "--base-bits", "4")


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base and texts."""
    base = architecture(tmp_path / "base", getattr(request, "param", "gpt2"))
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(base)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    drawn = random.Random(0)
    for name in ("train", "other"):
        lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(3, 9)))} for _ in range(24)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network.eval()(input_ids=torch.arange(10)[None] + 4).logits
    return found


def in_full(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "base")


def by_transformers(folder: Path) -> Any:
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    network = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", quantization_config=settings)
    in_full_precision(network)
    return network


def perplexity(network: Any, folder: Path) -> float:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    total, tokens = 0.0, 0
    for line in (folder / "other.jsonl").read_text().splitlines():
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            total += float(network(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return float(np.exp(total / tokens))


BOTH = pytest.mark.parametrize(
    "folder", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)], indirect=True
)  # fmt: skip


@BOTH
def test_the_quantized_base_is_the_one_that_transformers_loads(folder: Path) -> None:
    network = in_full(folder)
    full = logits(network)
    in_four_bits(network, CPU)
    layers = [type(m).__name__ for m in network.modules()]
    assert "Linear4bit" in layers
    assert "Conv1D" not in layers
    assert not any(p.requires_grad for p in network.parameters())
    assert torch.equal(logits(network), logits(by_transformers(folder)))
    assert not torch.allclose(logits(network), full, atol=1e-4)
    settings = settings_for_transformers(network)
    assert settings is not None
    assert settings.llm_int8_skip_modules == ["lm_head"]


@BOTH
def test_an_adapter_is_trained_on_it_and_loads_as_measured(folder: Path) -> None:
    assert run(["retrain", "dp-sgd", "base", "--epsilon", "8", *QLORA, *TRAIN, "-o", "out", "-q"]) == 0
    report = read_report(folder / "out.report.json")
    assert report.parameters["base_bits"] == 4
    assert any("in 4 bits" in warning for warning in report.warnings)
    network = peft.PeftModel.from_pretrained(by_transformers(folder), folder / "out").eval()
    found = next(e.estimate for e in report.evidence if e.quantity == "held-out perplexity")
    assert found == pytest.approx(perplexity(network, folder), rel=1e-5)
    plain = peft.PeftModel.from_pretrained(in_full(folder), folder / "out").eval()
    assert found != pytest.approx(perplexity(plain, folder), rel=1e-5)
    assert run(["verify", "out", "-q"]) == 0
    assert run(["retrain", "clipped", "out", "--base-bits", "4", "--dry-run", *TRAIN, "-o", "again", "-q"]) == 0


def test_a_base_quantized_otherwise_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def planted(network: Any) -> Any:
        settings = settings_for_transformers(network)
        assert settings is not None
        settings.bnb_4bit_quant_type = "fp4"
        return settings

    monkeypatch.setattr("privctl.train.release.adapter.settings_for_transformers", planted)
    assert run(["retrain", "plain", "base", *QLORA, *TRAIN, "-o", "out", "-q"]) == 3
    assert "its answers differ by" in capsys.readouterr().err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("call", "because"),
    [
        (("base", "--base-bits", "4"), "add --lora-rank and --save-adapter"),
        (("base", "--lora-rank", "2", "--base-bits", "4"), "add --lora-rank and --save-adapter"),
        (("base", *QLORA[:-1], "3"), "'3' is not '4'"),
    ],
)
def test_options_that_do_not_go_together(
    call: tuple[str, ...], because: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["retrain", "plain", *call, *TRAIN, "-o", "out"]) == 2
    assert because in capsys.readouterr().err


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(CommandError, match=r"pip install 'privctl\[qlora\]'"):
        in_four_bits(in_full(folder), CPU)


def test_an_audit_holds_the_base_as_the_training_did(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["retrain", "plain", "base", *QLORA, *TRAIN, "-o", "out", "-q"]) == 0
    call = ["audit", "out", "--members", "train.jsonl", "--nonmembers", "other.jsonl", "--cache", "kept", "-q"]
    assert run([*call, "--device", "cpu", "-o", "full.report.json"]) == 0
    assert run([*call, "--device", "cpu", "-o", "four.report.json", "--base-bits", "4"]) == 0
    full, four = (read_report(folder / f"{name}.report.json") for name in ("full", "four"))
    assert four.parameters["base_bits"] == 4
    assert "base_bits" not in full.parameters
    assert any("--base-bits 4" in line for line in full.warnings)
    assert not any("--base-bits 4" in line for line in four.warnings)
    assert len([path for path in (folder / "kept").iterdir() if path.is_dir()]) == 2
    model = load_model(folder / "out", device="cpu", base_bits=4)
    by_peft = peft.PeftModel.from_pretrained(by_transformers(folder), folder / "out").eval()
    assert torch.equal(logits(model.network), logits(by_peft))
    assert not torch.allclose(logits(load_model(folder / "out", device="cpu").network), logits(by_peft), atol=1e-4)
    capsys.readouterr()
    assert run([call[0], "base", *call[2:], "--base-bits", "4"]) == 2
    assert "give an adapter as MODEL" in capsys.readouterr().err
