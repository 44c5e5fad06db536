"""An adapter is told by its report on the base that it was trained on, and on no other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from privctl.cli import run
from privctl.storage.digest import file_digest
from tests.cli import test_adapters
from tests.cli.test_adapters import AUDIT, CLIPPED, DP, NEW, TRAIN, edit, gate

pytest.importorskip("peft")

made = test_adapters.made
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"


@pytest.fixture(scope="module")
def trained(made: Path) -> Path:
    """``made`` with a privately trained adapter, and one that was clipped and noised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert run(["retrain", *DP[:1], "base", *DP[1:], *NEW, *TRAIN, "-o", "out", "-q"]) == 0
        assert run(["retrain", CLIPPED[0], "base", *CLIPPED[1:], *NEW, *TRAIN, "-o", "clipped", "-q"]) == 0
        assert run(["noise", "clipped", "--epsilon", "8", "-q", "-o", "noised"]) == 0
    return made


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_shards(base: Path) -> None:
    """Other weights, of which no file has the name of a recorded one."""
    tensors = {name: tensor + 1 for name, tensor in load_file(base / WEIGHTS).items()}
    (base / WEIGHTS).unlink()
    save_file(tensors, base / "model-00001-of-00001.safetensors")
    names = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    (base / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def as_pickle(base: Path) -> None:
    (base / WEIGHTS).rename(base / "pytorch_model.bin")


def with_an_adapter(base: Path) -> None:
    shutil.copy(base.with_name("adapter") / CONFIG, base)
    shutil.copy(base.with_name("adapter") / "adapter_model.safetensors", base)


@pytest.mark.parametrize("model", ["out", "noised"])
@pytest.mark.parametrize("change", [in_shards, as_pickle, with_an_adapter])
def test_weights_that_a_loader_takes_or_adds_are_noticed(
    model: str, change: Callable[[Path], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder / "base")
    assert run(["verify", model, "-q"]) == 1
    assert "it belongs to the adapter's base" in " ".join(capsys.readouterr().out.split())


@pytest.mark.forged("the configuration of the base is left out of the training's report, so that it may be another")
def test_a_base_whose_configuration_is_not_recorded_is_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "out.report.json"
    report = json.loads(place.read_text())
    assert sum(each["role"] == "base-config.json" for each in report["inputs"]) == 1
    report["inputs"] = [each for each in report["inputs"] if each["role"] != "base-config.json"]
    place.write_text(json.dumps(report))
    assert run(["verify", "out", "-q"]) == 1
    assert "config.json: it belongs to the adapter's base" in " ".join(capsys.readouterr().out.split())
    code, said = gate(folder / "out", capsys)
    assert code == 1
    assert "it belongs to the adapter's base" in " ".join(said.split())


def test_weights_that_no_loader_takes_are_no_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Models of the hub lie there for several frameworks."""
    for name in ("pytorch_model.bin", "tf_model.h5", "README.md"):
        (folder / "base" / name).write_bytes(b"x")
    for model in ("out", "noised"):
        assert run(["verify", model, "-q"]) == 0
    code, said = gate(folder / "out", capsys)
    assert code == 0, said
    _, said = gate(folder / "noised", capsys)
    assert "is not the one that was written" not in " ".join(said.split())


def test_an_audit_on_a_base_in_other_files_does_not_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "base", folder / "other")
    in_shards(folder / "other")
    assert run(["audit", "out", "--base", "other", *AUDIT]) == 0
    code, said = gate(folder / "out", capsys)
    assert code == 1
    assert "model-00001-of-00001.safetensors of the base model that the audit read" in " ".join(said.split())


def test_the_base_that_an_audit_read_is_looked_at_again(folder: Path) -> None:
    """Where the report of the training is at hand too, and the adapter names another folder."""
    shutil.copytree(folder / "base", folder / "other")
    assert run(["audit", "out", "--base", "other", *AUDIT]) == 0
    assert run(["verify", "out.audit.report.json", "-q"]) == 0
    with (folder / "other" / WEIGHTS).open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    assert run(["verify", "out.audit.report.json", "-q"]) == 1


def renamed(folder: Path, model: str, base: str) -> None:
    """Let the adapter name another base, and its report the file as it is then."""
    edit(folder / model, base_model_name_or_path=base)
    place = folder / f"{model}.report.json"
    report = json.loads(place.read_text())
    for each in report["outputs"]:
        if each["path"].endswith(CONFIG):
            config = folder / model / CONFIG
            each.update(digest=file_digest(config), bytes=config.stat().st_size)
    place.write_text(json.dumps(report))


@pytest.mark.forged("the adapter's configuration names another base, which is not at hand")
@pytest.mark.parametrize(
    ("model", "why"), [("out", "it names the base 'owner/tuned'"), ("noised", "is not the one that was written")]
)
def test_another_base_than_the_one_trained_on_is_not_named(
    model: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed(folder, model, "owner/tuned")
    assert run(["verify", model, "-q"]) == 1
    assert why in " ".join(capsys.readouterr().out.split())
    code, said = gate(folder / model, capsys)
    assert code == 1
    assert why in " ".join(said.split())


@pytest.mark.parametrize("base", ["base", "./base", "/elsewhere/base", "../x/base", ".", None])
def test_the_base_may_be_named_from_any_folder(base: str, folder: Path) -> None:
    renamed(folder, "out", base)
    assert run(["verify", "out", "-q"]) == 0


def test_a_base_with_another_adapter_in_it_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_an_adapter(folder / "base")
    assert run(["retrain", *DP[:1], "base", *DP[1:], *NEW, *TRAIN, "-o", "again", "-q"]) == 3
    assert "also holds adapter_config.json, by which a loader adds another adapter" in capsys.readouterr().err
    assert not (folder / "again").exists()


def test_it_is_said_that_the_base_is_not_at_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "not checked: the adapter's base: the base that it names is not at hand"
    for gone in (False, True):
        if gone:
            (folder / "base").rename(folder / "another")
        assert run(["verify", "out.report.json", "-q"]) == 0
        assert (said in " ".join(capsys.readouterr().out.split())) is gone
