"""The records of a training are counted again where they are at hand, without being asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.storage.digest import NamedFiles, file_digest
from tests.verify.kinds import Kinds
from verify.files import counted_data
from verify.files.counted_data import check_recorded_data
from verify.run import read, verify

Report = dict[str, Any]
_BY_USER = "all records with one value of 'user' are one example"


def of_users(report: Report) -> None:
    report["parameters"]["unit"] = "user"
    for guarantee in report["guarantees"]:
        for assumption in guarantee["assumptions"]:
            if assumption["name"] == "unit of privacy":
                assumption["statement"] = _BY_USER


def of_more_records(report: Report) -> None:
    """Whatever follows from the number of records is left as it is: that they are not so many is found all the same."""
    report["parameters"]["examples"] *= 2


def said_to_be_uncounted(path: Path) -> bool:
    return "number of examples" in {omission.what for omission in verify(path, read(path)).omissions}


def found(path: Path, report: Report) -> list[str]:
    path.write_text(json.dumps(report))
    return [verdict.reason for verdict in check_recorded_data(path, read(path), [], NamedFiles())]


@pytest.mark.parametrize(
    ("change", "word"),
    [(of_users, "said to have been trained with 'user' as the users of its records, and"),
     (of_more_records, "train.jsonl holds 60 examples, and the report says 120")],
)  # fmt: skip
def test_a_training_is_held_against_its_records(kinds: Kinds, change: Callable[[Report], None], word: str) -> None:
    kind = kinds["dp-sgd"]
    report_path, report = kind.path.with_name("changed.report.json"), json.loads(kind.path.read_text())
    assert found(report_path, report) == []
    change(report)
    (reason,) = found(report_path, report)
    assert word in reason
    if change is of_users:
        assert verify(report_path, read(report_path)).exit_code is ExitCode.REFUTED
    report_path.unlink()


def test_what_is_not_at_hand_is_not_counted(kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, report_path = kinds["dp-sgd"], tmp_path / "changed.report.json"
    report = json.loads(kind.path.read_text())
    of_more_records(report)
    data = tmp_path / "train.jsonl"
    for artifact in report["inputs"]:
        artifact["path"] = data.name if artifact["role"] == "data" else artifact["path"]
    assert (found(report_path, report), said_to_be_uncounted(report_path)) == ([], True)
    shutil.copy(kind.path.with_name("train.jsonl"), data)
    assert (len(found(report_path, report)), said_to_be_uncounted(report_path)) == (1, False)
    monkeypatch.setattr(counted_data, "MOST_BYTES", data.stat().st_size - 1)
    assert (found(report_path, report), said_to_be_uncounted(report_path)) == ([], True)
    monkeypatch.undo()
    data.write_text(data.read_text().replace("a", "e"))
    assert found(report_path, report) == []


def trained_by_user(folder: Path, start: Path, *more: str) -> Path:
    data = folder / "records.jsonl"
    texts = ("the cat sat", "a dog sat on the mat", "the old mat", "a very old cat", "the dog and the cat")
    lines = [{"text": f"{texts[i % 5]} {i}", "user": f"u{i // 3}"} for i in range(30)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("retrain", "clipped", start, "--data", data, "--epochs", 1, "--batch-size", 5, "-o", folder / "clipped")
    assert run([*map(str, asked), "--optimizer", "sgd", "--device", "cpu", "-q", *more]) == 0
    noise = ("noise", folder / "clipped", "--epsilon", 8, "-q", "-o", folder / "noised")
    assert run([*map(str, noise)]) == 0
    return folder / "noised.report.json"


def test_a_clipped_training_said_to_be_one_of_users_is_refuted_through_its_noise(kinds: Kinds, tmp_path: Path) -> None:
    """Its report has no assumptions, so the field alone was edited, and its digest in the report of the noise."""
    noised = trained_by_user(tmp_path, kinds["dp-sgd"].path.with_name("start"))
    assert verify(noised, read(noised)).exit_code is ExitCode.OK
    clipped = tmp_path / "clipped.report.json"
    report = json.loads(clipped.read_text())
    report["parameters"]["unit"] = "user"
    clipped.write_text(json.dumps(report))
    noise = json.loads(noised.read_text())
    noise["parents"][0]["digest"] = file_digest(clipped)
    noised.write_text(json.dumps(noise))
    for path in (clipped, noised):
        verification = verify(path, read(path))
        assert verification.exit_code is ExitCode.REFUTED
        assert "holds 10 examples, and the report says 30" in " ".join(
            verdict.reason for verdict in verification.verdicts
        )


def test_a_training_of_users_passes_with_its_noise(kinds: Kinds, tmp_path: Path) -> None:
    noised = trained_by_user(tmp_path, kinds["dp-sgd"].path.with_name("start"), "--unit", "user")
    for path in (noised, tmp_path / "clipped.report.json"):
        assert verify(path, read(path)).exit_code is ExitCode.OK
