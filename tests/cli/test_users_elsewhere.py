"""Where users are protected, other records of theirs among those taken for public: refused, or said in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.cli.dpquant_runs import WORDS
from tests.cli.short_runs import dp_sgd, prepared

SEARCH = ["--search", "learning-rate=1e-3,1e-4", "--expected-runs", "1.5"]


def written(path: Path, texts: list[str], users: list[str] | None) -> Path:
    named = [{"text": text} for text in texts]
    rows = named if users is None else [row | {"who": user} for row, user in zip(named, users, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = prepared(tmp_path, 1)
    written(folder / "train.jsonl", [f"the cat sat on a {word}" for word in WORDS * 3], [f"u{i}" for i in range(30)])
    return folder


def call(folder: Path, *more: str, unit: str | None = "who") -> list[str]:
    of_users = [] if unit is None else ["--unit", unit]
    few = ["--steps", "2", "--batch-size", "6", "--noise-multiplier", "1", "--device", "cpu"]
    return dp_sgd(folder, folder / "out", *few, *of_users, *more)


OTHERS = [f"a very old {word}" for word in WORDS]


@pytest.mark.parametrize("flag", ["--public", "--held-out"])
def test_another_record_of_a_protected_user_is_not_public(
    folder: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    public = written(folder / "other.jsonl", OTHERS, [*(f"v{i}" for i in range(9)), "u7"])
    more = [flag, str(public), *(SEARCH if flag == "--held-out" else [])]
    assert run(call(folder, *more)) == ExitCode.USAGE
    assert f"{flag} {public} holds records of a 'who' whose records" in " ".join(capsys.readouterr().err.split())
    assert run(call(folder, *more, "--force", unit=None)) == 0, "a record alone is protected, and that one is another"
    written(public, OTHERS, None)
    assert run(call(folder, *more, "--force")) == 0, "who it is from is not said"


def test_a_run_that_measures_a_protected_user_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "the held-out data hold records of a 'who' whose records are trained on"
    held_out, report_path = folder / "other.jsonl", folder / "out.report.json"
    for last, expected in (("u7", 1), ("v9", 0)):
        written(held_out, OTHERS, [*(f"v{i}" for i in range(9)), last])
        assert run(call(folder, "--held-out", str(held_out), "--force")) == 0
        assert (said in " ".join(capsys.readouterr().err.split())) is bool(expected)
        assert sum(said in warning for warning in read_report(report_path).warnings) == expected
        assert run(["verify", str(report_path), "-q"]) == ExitCode.OK


def test_verify_finds_a_protected_user_among_those_that_chose_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = written(folder / "other.jsonl", OTHERS, [f"v{i}" for i in range(10)])
    assert run(call(folder, "--held-out", str(public), *SEARCH, "-q")) == 0
    report_path = folder / "out.report.json"
    assert run(["verify", str(report_path), "-q"]) == ExitCode.OK
    report = json.loads(report_path.read_text())
    forged = written(folder / "forged.jsonl", OTHERS, [*(f"v{i}" for i in range(9)), "u7"])
    (artifact,) = (each for each in report["inputs"] if each["role"] == "held-out")
    artifact |= {"path": forged.name, "digest": file_digest(forged), "bytes": forged.stat().st_size}
    report_path.write_text(json.dumps(report))
    capsys.readouterr()
    assert run(["verify", str(report_path)]) == ExitCode.REFUTED
    assert "forged.jsonl holds records of a 'who' whose records are private" in " ".join(
        capsys.readouterr().out.split()
    )
