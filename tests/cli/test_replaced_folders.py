"""``--force`` and folders: replaced where privctl wrote them, refused before the work elsewhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from privctl.cli import run
from tests.few import few


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"text": f"the cat sat on mat {i}"}) + "\n" for i in range(12)))
    return path


def retrain(model: Path, data: Path, output: Path, *more: str) -> int:
    call = ["retrain", "plain", str(model), "--data", str(data), "-o", str(output), "--steps", "1", "--batch-size", "4"]
    return run([*call, "--device", "cpu", "-q", *more])


def unread(folder: Path) -> Path:
    """Data that whoever reads them refuses."""
    path = folder / "unread.jsonl"
    path.write_text('{"text": "a"}\nno record\n')
    return path


def clipped(model: Path, data: Path, output: Path) -> None:
    """A model that noise may be added to, by the facts in its report."""
    call = ["retrain", "clipped", str(model), "--data", str(data), "-o", str(output), "--epochs", "1"]
    assert run([*call, "--batch-size", "4", "--optimizer", "sgd", "--clip-norm", "1", "--device", "cpu", "-q"]) == 0


def state(folder: Path) -> dict[str, str]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_force_replaces_a_model_that_privctl_wrote_with_its_report(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert retrain(start, data, output) == 0
    first = state(tmp_path)
    assert retrain(start, data, output, "--seed", "1") == 2
    assert f"{output} exists; give --force to replace it" in capsys.readouterr().err
    assert state(tmp_path) == first
    assert retrain(start, data, output, "--seed", "1", "-f") == 0
    second = state(tmp_path)
    assert second.keys() == first.keys()
    assert second["out/model.safetensors"] != first["out/model.safetensors"]
    assert run(["verify", str(tmp_path / "out.report.json"), "-q"]) == 0


def test_force_keeps_a_file_that_was_edited(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert retrain(start, data, output) == 0
    config = output / "config.json"
    config.write_text(config.read_text().replace("{", '{"note": "mine",', 1))
    edited = state(tmp_path)
    assert retrain(start, data, output, "-f") == 2
    assert f"{config} is not what" in capsys.readouterr().err
    assert state(tmp_path) == edited


def test_force_replaces_a_folder_with_noise(start: Path, data: Path, tmp_path: Path) -> None:
    clipped(start, data, tmp_path / "m")
    call = ["noise", str(tmp_path / "m"), "--epsilon", "0.001", "-q"]
    assert run(call) == 0
    first = state(tmp_path)
    assert run(call) == 2
    assert run([*call, "-f"]) == 0
    second = state(tmp_path)
    assert second.keys() == first.keys()
    (written,) = (name for name in second if name.endswith("/model.safetensors") and name.startswith("m."))
    assert second[written] != first[written]


@pytest.mark.parametrize("stray", few(["notes.txt", "sub", "no report", "link"], 1, 3))
def test_force_keeps_what_privctl_did_not_write_and_says_so_before_the_work(
    start: Path, data: Path, tmp_path: Path, stray: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output, word = tmp_path / "out", f"holds {stray}"
    assert retrain(start, data, output) == 0
    if stray == "notes.txt":
        (output / stray).write_text("mine")
    elif stray == "sub":
        (output / stray).mkdir()
    elif stray == "link":
        output = output.rename(tmp_path / "elsewhere")
        (tmp_path / "out").symlink_to(output)
        output, word = tmp_path / "out", "--output"
    else:
        (tmp_path / "out.report.json").unlink()
        word = "no report at"
    bad = unread(tmp_path)
    before = state(tmp_path)
    capsys.readouterr()
    # Whoever is refused for the folder was refused before the data were read.
    assert retrain(start, bad, output, "-f") == 2
    assert word in capsys.readouterr().err
    assert state(tmp_path) == before


def test_a_model_is_not_replaced_by_what_it_becomes(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m"
    assert retrain(start, data, model) == 0
    before = state(tmp_path)
    assert retrain(model, data, model, "-f") == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert state(tmp_path) == before


def test_noise_is_refused_before_the_perplexity_is_measured(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clipped(start, data, tmp_path / "m")
    (tmp_path / "taken").mkdir()
    call = ["noise", str(tmp_path / "m"), "-o", str(tmp_path / "taken"), "--evaluate", str(unread(tmp_path))]
    assert run(call) == 2
    assert "taken exists; give --force" in capsys.readouterr().err
