"""Extraction and secrets that cannot be measured: the rest of the audit stands, and nobody takes them for measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import privctl
from privctl.cli import run
from privctl.domain.errors import ExitCode
from tests.audits.tiny import save_model, sentences, write_jsonl

LONG = ("--prefix-tokens", "50", "--suffix-tokens", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attempts")
    write_jsonl(folder / "members.jsonl", sentences(30, seed=1))
    write_jsonl(folder / "nonmembers.jsonl", sentences(40, seed=2))
    save_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def audited(folder: Path) -> Path:
    assert audit(folder, "--train", str(folder / "members.jsonl"), *LONG) == 0
    return folder / "a.report.json"


def audit(folder: Path, *more: str, membership: bool = True, output: str = "a.report.json") -> int:
    files = {"--members": "members.jsonl", "--nonmembers": "nonmembers.jsonl"} if membership else {}
    sides = [part for flag, name in files.items() for part in (flag, str(folder / name))]
    attack = ["--attack", "loss"] if membership else []
    return run(["audit", str(folder / "model"), *sides, *attack, "-o", str(folder / output), "--device", "cpu", *more])


def changed(report: Path, edit: Any) -> Any:
    """What ``verify`` says of the report after ``edit`` of its JSON."""
    entries = json.loads(report.read_text())
    edit(entries)
    other = report.with_name("changed.report.json")
    other.write_text(json.dumps(entries))
    return privctl.verify(other)


def test_membership_stands_and_the_report_says_what_is_missing(audited: Path) -> None:
    report = json.loads(audited.read_text())
    assert [item["what"] for item in report["omissions"] if item["what"] == "extraction"] == ["extraction"]
    assert any(item["quantity"] == "AUC" and item["method"] == "loss" for item in report["evidence"])
    found = privctl.verify(audited)
    assert found.exit_code == ExitCode.OK
    assert any(
        omission.what == "extraction" and "could not measure it" in omission.reason for omission in found.omissions
    )


def test_the_summary_says_it(folder: Path, audited: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit(folder, "--train", str(folder / "members.jsonl"), *LONG, output="b.report.json") == 0
    out, errors = capfd.readouterr()
    assert "extraction was not measured: " in " ".join(errors.split())
    first = " ".join(out.partition("\n\n")[0].split())
    assert "Extraction was not measured: " in first
    assert "the audit was not asked to extract training text" not in out


def test_a_gate_that_asks_for_extraction_fails(audited: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("max_extracted = 0.5\n")
    assert run(["gate", str(audited), "--policy", str(policy)]) != ExitCode.OK


@pytest.mark.forged("a part is said not to be run that was, or that nobody asked for")
def test_a_part_that_was_run_cannot_be_left_out(folder: Path, audited: Path) -> None:
    def never_asked(entries: dict[str, Any]) -> None:
        entries["omissions"].append({"what": "secrets", "reason": "the model is too small"})

    found = changed(audited, never_asked)
    assert found.exit_code == ExitCode.REFUTED
    assert any("was not asked to measure it" in verdict.reason for verdict in found.verdicts)
    whole = ("--train", str(folder / "members.jsonl"), "--prefix-tokens", "2", "--suffix-tokens", "2")
    assert audit(folder, *whole, output="whole.report.json") == 0

    def left_out(entries: dict[str, Any]) -> None:
        entries["evidence"] = [item for item in entries["evidence"] if item["method"] != "extraction"]
        entries["verdicts"] = [item for item in entries["verdicts"] if "extracted" not in item["subject"]]
        del entries["parameters"]["extraction"]
        entries["omissions"].append({"what": "extraction", "reason": "its texts are short"})

    found = changed(folder / "whole.report.json", left_out)
    assert found.exit_code == ExitCode.REFUTED
    assert any("kept what extraction measures" in verdict.reason for verdict in found.verdicts)


def test_alone_it_is_an_error(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("--train", str(folder / "members.jsonl"), *LONG)
    assert audit(folder, *asked, membership=False, output="alone.report.json") in (2, 3)
    assert "has no record of 52 tokens" in capfd.readouterr().err
    assert not (folder / "alone.report.json").exists()
