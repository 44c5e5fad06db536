"""``noise --base``: weights that were trained on the same data, or made from the model itself, are not public."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.noise import request
from privctl.reports.files import file_artifact, write_report
from tests.verify.kinds import Kind, Kinds
from verify.run import read, verify


def base_made(clipped: Kind, folder: Path, *, data: bool, start: bool = True) -> Path:
    """A model that differs from ``clipped`` in one tensor, with the report of a training that made it.

    ``data``: on the same data. ``start``: from these very weights.
    """
    assert clipped.model is not None
    base, report_path = folder / "base", folder / "base.report.json"
    shutil.copytree(clipped.model, base)
    tensors = load_file(base / "model.safetensors")
    first = min(tensors)
    save_file({**tensors, first: tensors[first] + 1e-4}, base / "model.safetensors")
    report = read(clipped.path)
    (weights,) = (artifact for artifact in report.outputs if artifact.role == "model")
    began = replace(weights, role="start-model.safetensors", tensors=())
    inputs = [artifact for artifact in report.inputs if artifact.role != "data" or data]
    with_base = replace(
        report,
        inputs=(*inputs, *([began] if start else [])),
        outputs=(file_artifact("model", base / "model.safetensors", report_path),),
    )
    write_report(report_path, with_base)
    return base


def noised(model: Path, base: Path, output: Path, *facts: str) -> int:
    return run([str(each) for each in ("noise", model, "--base", base, "--epsilon", 1, "-q", *facts, "-o", output)])


def test_a_base_that_was_trained_on_the_same_data(
    kinds: Kinds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clipped = kinds["clipped"]
    base = base_made(clipped, tmp_path, data=True, start=False)
    assert clipped.model is not None
    assert noised(clipped.model, base, tmp_path / "out") == ExitCode.BAD_INPUT
    assert "was trained on the data of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def other_data(clipped: Kind, base: Path, *, shared: bool) -> None:
    """The report beside ``base`` names a file of its own; ``shared``: one record of it is the training's."""
    report = read(clipped.path)
    (data,) = (artifact for artifact in report.inputs if artifact.role == "data")
    ours = json.loads((clipped.path.parent / data.path).read_text().splitlines()[4])["text"]
    texts = ["Another text.", f" {ours.upper()}\n" if shared else "A third."]
    file, report_path = base.with_name("other.jsonl"), base.with_name("base.report.json")
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    original = read(report_path)
    inputs = [artifact for artifact in original.inputs if artifact.role != "data"]
    write_report(report_path, replace(original, inputs=(*inputs, file_artifact("data", file, report_path))))


def test_a_base_that_was_trained_on_a_record_in_another_file(
    kinds: Kinds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clipped = kinds["clipped"]
    base = base_made(clipped, tmp_path, data=False, start=False)
    other_data(clipped, base, shared=True)
    assert clipped.model is not None
    assert noised(clipped.model, base, tmp_path / "out") == ExitCode.BAD_INPUT
    assert "trained on record 2 of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    other_data(clipped, base, shared=False)
    assert noised(clipped.model, base, tmp_path / "out") == ExitCode.OK


def test_a_base_that_was_made_from_a_model_without_a_report(
    kinds: Kinds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clipped = kinds["clipped"]
    base = base_made(clipped, tmp_path, data=False)
    assert clipped.model is not None
    alone = tmp_path / "alone.safetensors"
    shutil.copy(clipped.model / "model.safetensors", alone)
    facts = (
        "--epochs",
        "1",
        "--learning-rate",
        "1e-4",
        "--clip-norm",
        "1",
        "--dataset-size",
        "60",
        "--batch-size",
        "12",
    )
    assert noised(alone, base, tmp_path / "out.safetensors", *facts) == ExitCode.BAD_INPUT
    assert "was made from" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


def refuted_noise(clipped: Kind, base: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> Path:
    """The report of noise on ``clipped`` that took ``base`` for public; ``verify`` must refute it for ``reason``."""
    monkeypatch.setattr(request, "require_public", lambda *_: None)
    assert clipped.model is not None
    assert noised(clipped.model, base, folder / "out") == ExitCode.OK
    report_path = folder / "out.report.json"
    found = verify(report_path, read(report_path))
    assert found.exit_code is ExitCode.REFUTED
    assert any(reason in verdict.reason for verdict in found.verdicts)
    return report_path


@pytest.mark.forged("the base is taken for public although its report says otherwise")
def test_noise_that_spared_such_a_base_is_refuted(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clipped = kinds["clipped"]
    base = base_made(clipped, tmp_path, data=True)
    report_path = refuted_noise(clipped, base, tmp_path, monkeypatch, "trained on the same data before")
    capsys.readouterr()
    assert run(["gate", str(report_path), "--max-epsilon", "3", "-q"]) == ExitCode.REFUTED
    assert "trained on the same data before" in " ".join(capsys.readouterr().out.split())
    policy = tmp_path / "policy.toml"
    policy.write_text("max_epsilon = 3\nrecompute = false\n")
    assert run(["gate", str(report_path), "--policy", str(policy), "-q"]) == ExitCode.REFUTED
    assert "trained on the same data before" in " ".join(capsys.readouterr().out.split())


def test_a_base_of_other_data_stays_public(kinds: Kinds, tmp_path: Path) -> None:
    clipped = kinds["clipped"]
    base = base_made(clipped, tmp_path, data=False, start=False)
    assert clipped.model is not None
    assert noised(clipped.model, base, tmp_path / "out") == ExitCode.OK
    report_path = tmp_path / "out.report.json"
    assert [Path(parent["path"]).name for parent in json.loads(report_path.read_text())["parents"]][1:] == [
        "base.report.json"
    ]
    assert verify(report_path, read(report_path)).exit_code is ExitCode.OK


@pytest.mark.forged("the base is taken for public although a record of its own file is the training's")
def test_noise_that_spared_a_base_of_a_record_in_another_file_is_refuted(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped = kinds["clipped"]
    base = base_made(clipped, tmp_path, data=False, start=False)
    other_data(clipped, base, shared=True)
    refuted_noise(clipped, base, tmp_path, monkeypatch, "were trained on record")
