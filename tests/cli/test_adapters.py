"""Adapters audited and trained on their base: what is measured is what peft loads."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from privctl.cli import run
from privctl.domain.report import PrivacyReport
from privctl.models.language import TEXT_CLASSIFIER, load_model
from privctl.reports.files import read_report
from tests.models.tasks.small import architecture, words

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, an adapter on it as peft writes them, and texts."""
    folder = tmp_path_factory.mktemp("adapters")
    base = architecture(folder / "base", "gpt2")
    torch.manual_seed(0)
    auto = transformers.AutoModelForCausalLM
    auto.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    settings = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    save_adapter(peft.get_peft_model(auto.from_pretrained(base), settings), folder / "adapter")
    drawn = random.Random(0)
    for name in ("train", "other"):
        lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(3, 9)))} for _ in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def save_adapter(joined: Any, folder: Path) -> None:
    for name, weights in joined.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    joined.save_pretrained(folder)


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in which the adapter names the base that lies beside it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "base"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(adapter: Path, **keys: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def by_peft(base: Path, adapter: Path, auto: Any = None, **more: Any) -> Any:
    network = (auto or transformers.AutoModelForCausalLM).from_pretrained(base, **more)
    return peft.PeftModel.from_pretrained(network, adapter).eval()


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network(input_ids=torch.arange(10)[None] + 4).logits
    return found


AUDIT = ("--members", "train.jsonl", "--nonmembers", "other.jsonl", "--attack", "loss", "--device", "cpu", "-q")


def test_what_is_audited_is_what_peft_loads(folder: Path) -> None:
    with_peft = logits(by_peft(folder / "base", folder / "adapter"))
    assert torch.equal(logits(load_model(folder / "adapter", device="cpu").network), with_peft)
    assert not torch.allclose(logits(load_model(folder / "base", device="cpu").network), with_peft, atol=1e-2)


def test_an_audit_digests_adapter_and_base(folder: Path) -> None:
    assert run(["audit", "adapter", *AUDIT]) == 0
    place = folder / "adapter.audit.report.json"
    report = read_report(place)
    roles = {artifact.role: Path(artifact.path).as_posix() for artifact in report.inputs}
    assert roles["model"] == "adapter/adapter_model.safetensors"
    assert roles["base-model.safetensors"] == "base/model.safetensors"
    assert {"base-config.json", "base-tokenizer.json"} <= roles.keys()
    assert "adapter/adapter_config.json" in roles.values()
    assert run(["verify", str(place), "-q"]) == 0
    by_peft(folder / "base", folder / "adapter").merge_and_unload().save_pretrained(folder / "merged")
    words().tokenizer.save_pretrained(folder / "merged")
    for other in ("merged", "base"):
        assert run(["audit", other, *AUDIT]) == 0
    found, same, without = (load_file(folder / f"{n}.audit.scores.safetensors") for n in ("adapter", "merged", "base"))
    scores = [name for name, array in found.items() if array.dtype.kind == "f"]
    assert all(np.allclose(found[name], same[name], rtol=1e-4, atol=1e-5, equal_nan=True) for name in scores)
    assert not all(np.allclose(found[name], without[name], rtol=1e-2, equal_nan=True) for name in scores)
    with (folder / "base" / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    assert run(["verify", str(place), "-q"]) == 1


def test_a_base_is_given_or_named_and_never_downloaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder / "adapter", base_model_name_or_path="owner/base")
    assert run(["audit", "adapter", *AUDIT]) == 3
    said = capsys.readouterr().err
    assert "belongs on 'owner/base', which is not a model's folder here" in said
    assert "nothing is downloaded" in said
    assert run(["audit", "adapter", "--base", "base", *AUDIT]) == 0
    assert run(["audit", "base", "--base", "adapter", *AUDIT]) == 2
    assert "--base needs --secrets, or an adapter as MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "because"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "only LORA is loaded"),
        ({"init_lora_weights": "pissa"}, "changes the base too"),
        ({"r": 100_000}, "the rank 100000"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"bias": "all"}, "bias"),
        ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"use_dora": True}, "asks for"),
    ],
)
def test_settings_that_are_refused(
    folder: Path, keys: dict[str, object], because: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "adapter", **keys)
    assert run(["audit", "adapter", *AUDIT]) == 3
    assert because in capsys.readouterr().err
    assert not (folder / "adapter.audit.report.json").exists()


def test_an_adapter_of_another_base_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = architecture(folder / "wide", "gpt2", n_embd=32)
    transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(other)).save_pretrained(other)
    words().tokenizer.save_pretrained(other)
    assert run(["audit", "adapter", "--base", "wide", *AUDIT]) == 3
    assert "give another --base" in capsys.readouterr().err or "is not the one in" in capsys.readouterr().err


def test_weights_that_peft_would_load_otherwise_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = peft.set_peft_model_state_dict

    def planted(network: Any, tensors: dict[str, torch.Tensor], **more: Any) -> Any:
        name = next(iter(tensors))
        return genuine(network, {**tensors, name: tensors[name] + 1e-3}, **more)

    monkeypatch.setattr(peft, "set_peft_model_state_dict", planted)
    assert run(["audit", "adapter", *AUDIT]) == 3


def test_a_classifier_with_a_head_of_its_own(folder: Path) -> None:
    base = architecture(folder / "bert", "bert")
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification
    transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(base)).save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    settings = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    save_adapter(peft.get_peft_model(auto.from_pretrained(base, num_labels=3), settings), folder / "classes")
    edit(folder / "classes", base_model_name_or_path="bert")
    found = load_model(folder / "classes", device="cpu", kind=TEXT_CLASSIFIER)
    expected = logits(by_peft(base, folder / "classes", auto, num_labels=3))
    assert expected.shape == (1, 3)
    assert torch.equal(logits(found.network), expected)
    labelled(folder / "one.jsonl", classes=3)
    labelled(folder / "two.jsonl", classes=3)
    call = ["audit", "classes", "--members", "one.jsonl", "--nonmembers", "two.jsonl", "--attack", "loss", "-q"]
    assert run(call) == 0


def labelled(path: Path, classes: int) -> Path:
    lines = [{"text": f"{path.stem} {word}", "label": f"LABEL_{i % classes}"} for i, word in enumerate(WORDS * 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
