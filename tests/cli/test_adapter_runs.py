"""Runs on adapters that are interrupted, planned only, shadow models, or known by their report alone."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from privctl.cli import run
from privctl.data.texts import iter_texts
from privctl.domain.errors import InputError
from privctl.train.state import interrupts
from tests.cli.test_adapters import DPQUANT, FERRET, TRAIN, by_peft, folder, made, report_of
from tests.models.tasks.small import words

__all__ = ["folder", "made"]  # fixtures


@pytest.mark.slow
@pytest.mark.parametrize("method", [FERRET, DPQUANT])
def test_an_interrupted_run_goes_on(method: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ["retrain", method[0], "adapter", *method[1:], *TRAIN, "-o", "out", "-q"]
    with monkeypatch.context() as patched:
        patched.setattr(interrupts, "deferred_interrupts", lambda *_: nullcontext(lambda: True))
        assert run(call) != 0
    assert (folder / "out.run").is_dir()
    assert run([*call, "--resume"]) == 0
    assert report_of(folder / "out").parameters["updates"] > 1
    assert run(["verify", "out", "-q"]) == 0


@pytest.mark.parametrize("method", [pytest.param(FERRET, marks=pytest.mark.slow), DPQUANT])
def test_a_plan_counts_the_adapter_alone(
    method: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = sum(t.size for t in load_file(folder / "adapter" / "adapter_model.safetensors").values())
    assert run(["retrain", method[0], "adapter", *method[1:], *TRAIN, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained"] == numbers


@pytest.mark.slow
def test_shadow_models_of_an_adapter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--count", "4", "--steps", "2", "--batch-size", "8", "--learning-rate", "0.05", "--device", "cpu", "-q"]
    data = ["--data", "train.jsonl", "--data", "other.jsonl"]
    assert run(["shadow", "adapter", *data, *few, "-o", "shadows", "--keep-models"]) == 0
    settings = report_of(folder / "shadows" / "shadow").parameters
    assert settings["adapter"] is True
    one, two = (load_file(folder / "shadows" / f"shadow-000{i}" / "adapter_model.safetensors") for i in (0, 1))
    assert one.keys() == load_file(folder / "adapter" / "adapter_model.safetensors").keys()
    assert all((one[name] != two[name]).mean() > 0.5 for name in one)
    by_peft(folder / "base", folder / "shadows" / "shadow-0001")
    audit = ["--members", "train.jsonl", "--nonmembers", "other.jsonl", "--shadow", "shadows", "--attack", "lira"]
    assert run(["audit", "adapter", *audit, "--device", "cpu", "-q"]) == 0
    assert run(["audit", "shadows/shadow-0001", *audit, "--device", "cpu", "-q", "-o", "self.report.json"]) == 2
    assert "is itself the shadow model" in capsys.readouterr().err
    assert run(["shadow", "adapter", *data, *few, "-o", "other", "--vectorize", "2"]) == 2
    assert "an adapter as MODEL" in capsys.readouterr().err


@pytest.mark.parametrize("call", [("retrain", "clipped", "adapter"), ("shadow", "adapter", "--count", "4")])
def test_conversations_are_written_by_the_adapters_own_template(
    call: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base's would say "base"; an audit of the adapter reads by the adapter's, too."""
    for name in ("base", "adapter"):
        tokenizer = words().tokenizer
        tokenizer.chat_template = f"{{% for m in messages %}}{name} {{{{ m.content }}}}{{% endfor %}}"
        tokenizer.save_pretrained(folder / name)
    (folder / "chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "the cat"}]}) + "\n")

    def read(path: Path, **options: Any) -> None:
        (record,) = iter_texts(path, **options)
        raise InputError(f"read: {record.text}")

    for reader in ("privctl.train.preparation.reading.iter_texts", "privctl.shadow.pool.read_texts"):
        monkeypatch.setattr(reader, read)
    data = ("--data", "chat.jsonl", "--batch-size", "1", "--epochs", "1", "--task", "causal-lm", "-o", "out", "-q")
    assert run([*call, *data]) == 3
    assert "read: adapter the cat" in capsys.readouterr().err


def test_a_report_is_read_without_its_adapter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by somebody who was sent the report alone."""
    assert run(["retrain", "dp-sgd", "adapter", "--epsilon", "8", *TRAIN, "-o", "out", "-q"]) == 0
    (folder / "sent").mkdir()
    shutil.copy(folder / "out.report.json", folder / "sent")
    assert run(["verify", "sent/out.report.json", "-q"]) == 3
    stdout = " ".join(capsys.readouterr().out.split())
    assert "INCONCLUSIVE: out/adapter_model.safetensors: the model is not at hand" in stdout
    assert "conditional PROVED" in stdout
    assert run(["gate", "sent/out.report.json", "--max-epsilon", "8", "-q"]) == 0
