"""A private training that begins with weights which were trained on its records in another file, or copied since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.guarantee import Status
from privctl.domain.verdict import Outcome
from tests.verify import reports
from tests.verify.consistency.test_begun_with import edited
from tests.verify.kinds import Kinds
from verify.run import read, verify

WEIGHTS = "model.safetensors"


def trained(kinds: Kinds, folder: Path, data: Path) -> Path:
    """A model trained without privacy on ``data``; its report lies beside it."""
    start = kinds["dp-sgd"].path.with_name("start")
    asked = ("retrain", "plain", start, "--data", data, "--epochs", 1, "--batch-size", 12, "-o", folder / "before")
    assert run([*map(str, asked), "--device", "cpu", "-q"]) == 0
    return folder / "before"


def again(start: Path, data: Path, output: Path) -> int:
    """A private training on ``data`` that begins with ``start``."""
    asked = (
        "retrain",
        "dp-sgd",
        start,
        "--data",
        data,
        "--epsilon",
        3,
        "--epochs",
        1,
        "--batch-size",
        12,
        "-o",
        output,
    )
    return run([*map(str, asked), "--micro-tokens", "160", "--device", "cpu"])


def with_other_lines(data: Path, path: Path, keep: int) -> Path:
    """``keep`` lines of ``data``, in capitals, among others."""
    lines = [json.loads(line)["text"].upper() for line in data.read_text().splitlines()[:keep]]
    others = [f"the very old mat {number}" for number in range(40)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (*others, *lines)))
    return path


@pytest.fixture(scope="module")
def before(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the file that it was trained on."""
    folder = tmp_path_factory.mktemp("before")
    data = reports.texts(folder / "own.jsonl", seed=11)
    return trained(kinds, folder, data), data


@pytest.mark.parametrize("shared", [0, 1])
def test_a_record_in_another_file_makes_the_guarantee_void(
    before: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], shared: int
) -> None:
    start, own = before
    data, output = with_other_lines(own, tmp_path / "data.jsonl", shared), tmp_path / "model"
    assert again(start, data, output) == 0
    report_path = output.with_name("model.report.json")
    assert read(report_path).guarantees[0].status is (Status.VOID if shared else Status.CONDITIONAL)
    assert ("trained on record 41 of" in " ".join(capsys.readouterr().err.split())) is bool(shared)
    assert verify(report_path, read(report_path)).exit_code is ExitCode.OK
    if shared:
        changed = edited(report_path, parents=True)
        found = [verdict for verdict in verify(changed, read(changed)).verdicts if verdict.outcome is Outcome.REFUTED]
        assert [each.subject for each in found] == ["starting weights"]
        assert "were trained on record 41 of data.jsonl before" in found[0].reason
        own.rename(own.with_suffix(".away"))
        try:
            assert verify(changed, read(changed)).exit_code is ExitCode.OK  # what is not at hand is not compared
        finally:
            own.with_suffix(".away").rename(own)


def in_shards(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names, index = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def saved_again(folder: Path) -> None:
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS)


def in_half_precision(folder: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)


def copied(model: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    copy = folder / model.name
    shutil.copytree(model, copy)
    change(copy)
    report = json.loads(model.with_name(f"{model.name}.report.json").read_text())
    for artifact in report["inputs"]:
        artifact["path"] = str((model.parent / artifact["path"]).resolve())
    (folder / f"{model.name}.report.json").write_text(json.dumps(report))
    return copy


@pytest.mark.parametrize("change", [in_shards, saved_again])
def test_a_copy_of_the_weights_in_other_files_is_known(
    before: tuple[Path, Path], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    model, data = before
    assert again(copied(model, tmp_path, change), data, tmp_path / "out") == 0
    report_path = tmp_path / "out.report.json"
    assert read(report_path).guarantees[0].status is Status.VOID
    assert verify(report_path, read(report_path)).exit_code is ExitCode.OK


def test_a_copy_with_another_configuration_is_no_fault_of_a_training_on_other_data(
    before: tuple[Path, Path], tmp_path: Path
) -> None:
    """Programs that save a model again write their own version into it, for one."""
    model, own = before
    start = copied(model, tmp_path, in_shards)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps({**config, "transformers_version": "0.0.0"}))
    assert again(start, with_other_lines(own, tmp_path / "data.jsonl", 0), tmp_path / "out") == 0
    report_path = tmp_path / "out.report.json"
    assert (read(report_path).guarantees[0].status, read(report_path).parents) == (Status.CONDITIONAL, ())
    assert verify(report_path, read(report_path)).exit_code is ExitCode.OK


def report_taken_away(folder: Path) -> None:
    """The header of the weights still names it."""
    folder.with_name(f"{folder.name}.report.json").unlink()


@pytest.mark.parametrize(("missing", "why"), [(False, "is about other weights"), (True, "is missing")])
def test_a_report_that_does_not_fit_the_start_is_told(
    before: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: bool, why: str
) -> None:
    model, data = before
    start = copied(model, tmp_path, (lambda _: None) if missing else in_half_precision)
    if missing:
        report_taken_away(start)
        model = start
    assert again(start, data, tmp_path / "out") == 0
    stderr = capsys.readouterr().err.replace("\n", " ")
    report_path = tmp_path / "out.report.json"
    report = read(report_path)
    (warning,) = [warning for warning in report.warnings if "the initial weights" in warning]
    assert warning.startswith("before.report.json")
    assert why in warning
    assert why in " ".join(stderr.split())
    assert report.guarantees[0].status is Status.CONDITIONAL
    assert verify(report_path, report).exit_code is ExitCode.OK


def test_no_noise_on_a_clipped_training_of_such_a_start(
    before: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, own = before
    for shared, code in ((0, 0), (1, ExitCode.BAD_INPUT)):
        data, output = with_other_lines(own, tmp_path / f"{shared}.jsonl", shared), tmp_path / f"clipped{shared}"
        asked = ("retrain", "clipped", start, "--data", data, "--epochs", 1, "--batch-size", 12, "-o", output)
        assert run([*map(str, asked), "--optimizer", "sgd", "--device", "cpu", "-q"]) == 0
        capsys.readouterr()
        noise = ("noise", output, "--epsilon", 8, "-q", "-o", tmp_path / f"noised{shared}")
        assert run([*map(str, noise)]) == code
    assert "own.jsonl, which is also in" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "noised1").exists()


def test_no_noise_on_a_clipped_training_of_a_copy(
    before: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose report the clipped training names, though it is of the same tensors in one file."""
    model, data = before
    start, output = copied(model, tmp_path, in_shards), tmp_path / "clipped"
    asked = ("retrain", "clipped", start, "--data", data, "--epochs", 1, "--batch-size", 12, "-o", output)
    assert run([*map(str, asked), "--optimizer", "sgd", "--device", "cpu", "-q"]) == 0
    report_path = tmp_path / "clipped.report.json"
    assert [Path(parent.path).name for parent in read(report_path).parents] == ["before.report.json"]
    assert verify(report_path, read(report_path)).exit_code is ExitCode.OK
    capsys.readouterr()
    assert run(["noise", str(output), "--epsilon", "8", "-q", "-o", str(tmp_path / "noised")]) == ExitCode.BAD_INPUT
    assert "were trained on the same data before" in " ".join(capsys.readouterr().err.split())
