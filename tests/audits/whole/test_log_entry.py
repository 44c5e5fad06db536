"""Audits by the command line, in their log."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audits.scores.causal import CausalScorer
from audits.whole.log_entry import logged
from privctl.cli import run
from privctl.domain.errors import FileSystemError
from privctl.domain.verdict import Outcome
from privctl.reports.audit_log import AuditEvent, read_log
from privctl.reports.codec import decode
from privctl.storage.digest import file_digest
from privctl.storage.folder import files_of
from tests.audits.tiny import save_model, sentences, write_jsonl
from tests.few import few
from tests.logs import edited, reordered, without, written_anew
from verify.files.integrity import check_log

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "m")
    write_jsonl(tmp_path / "in.jsonl", sentences(40, seed=1))
    write_jsonl(tmp_path / "out.jsonl", sentences(40, seed=2))
    return tmp_path


def audit(*more: str) -> int:
    files = ["--members", "in.jsonl", "--nonmembers", "out.jsonl", "--attack", "loss", "--device", "cpu"]
    return run(["audit", "m", *files, *more])


def test_an_audit_is_entered_before_and_after(here: Path, capsys: Capture) -> None:
    assert audit("--seed", "3") == 0
    assert "entered into m.audits.jsonl, whose head is now line 3, blake3:" in capsys.readouterr().err
    assert stat.S_IMODE(os.stat("m.audits.jsonl").st_mode) == 0o600
    log = read_log(Path("m.audits.jsonl"))
    opened, began, wrote = log.entries
    assert [entry.event for entry in log.entries] == [AuditEvent.OPENED, AuditEvent.BEGUN, AuditEvent.WRITTEN]
    report = decode(Path("m.audit.report.json").read_text(), "report")
    assert report.log is not None
    assert (report.log.path, report.log.entry, report.log.digest) == ("m.audits.jsonl", 2, began.digest)
    assert wrote.details["report"] == file_digest(Path("m.audit.report.json"))
    assert began.details["weights"] == [file_digest(Path("m/model.safetensors"))]
    membership = began.details["settings"]["membership"]
    assert membership["seed"] == 3
    assert membership["attacks"] == ["loss"]
    assert " at 0x" not in Path("m.audits.jsonl").read_text()
    assert membership["members"] == file_digest(Path("in.jsonl"))
    area = next(item for item in report.evidence if item.quantity == "AUC" and item.method == "loss")
    assert wrote.details["worst"]["AUC"] == area.estimate
    for line in Path("m.audits.jsonl").read_text().splitlines():
        assert json.loads(line)["at"]
    assert opened.details["id"]


def test_the_log_stays_with_the_model_wherever_the_report_goes(here: Path) -> None:
    Path("reports").mkdir()
    assert audit("-q", "-o", "reports/a.report.json") == 0
    assert audit("-q", "-o", "reports/b.report.json") == 0
    assert len(read_log(Path("m.audits.jsonl")).audits) == 2
    report = decode(Path("reports/b.report.json").read_text(), "report")
    assert report.log is not None
    assert report.log.path == "../m.audits.jsonl"
    assert audit("-q", "-f", "-o", "reports/b.report.json", "--log", "reports/other.jsonl") == 0
    assert len(read_log(Path("reports/other.jsonl")).audits) == 1


def test_an_entry_is_durable_before_the_model_is_looked_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def stopped(*_: Any, **__: Any) -> Any:
        lengths.append(len(read_log(Path("m.audits.jsonl")).audits))
        raise KeyboardInterrupt

    monkeypatch.setattr(CausalScorer, "score", stopped)
    assert audit("-q") == 130
    assert lengths == [1]
    (found,) = read_log(Path("m.audits.jsonl")).audits
    assert found.end is not None
    assert found.end.event is AuditEvent.ENDED
    assert found.end.details["reason"] == "KeyboardInterrupt"
    assert not Path("m.audit.report.json").exists()


def test_a_report_that_cannot_be_written_ends_the_entry(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from audits.whole import run as audit_run
    from privctl.domain.errors import FileSystemError

    def full(*_: Any, **__: Any) -> None:
        raise FileSystemError("no space")

    monkeypatch.setattr(audit_run, "commit_with_report", full)
    assert audit("-q") == 4
    (found,) = read_log(Path("m.audits.jsonl")).audits
    assert found.end is not None
    assert found.end.details["reason"] == "no space"


def test_a_call_that_makes_no_sense_is_no_audit(here: Path) -> None:
    assert run(["audit", "m", "--device", "cpu"]) == 2
    assert run(["audit", "m", "--members", "in.jsonl", "--nonmembers", "in.jsonl", "--device", "cpu"]) == 2
    assert not Path("m.audits.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    few(
        [
            (without(2), "line 2 does not follow"),
            (reordered(2, 3), "line 2 does not follow"),
            (edited(b'"refuted":0', b'"refuted":7'), "line 3 does not follow"),
            (lambda log: log.write_text("{}\n"), "is no log of audits"),
            (lambda log: written_anew(log, lambda said: said["event"] != "begun"), "line 2 ends an audit"),
            (lambda log: written_anew(log, lambda said: said["event"] == "begun"), "line 1 comes before"),
        ],
        0,
        3,
        4,
        5,
    ),
)
def test_nothing_is_added_to_a_log_that_was_tampered_with(
    here: Path, capsys: Capture, change: Callable[[Path], object], says: str
) -> None:
    log = Path("m.audits.jsonl")
    assert audit("-q") == 0
    change(log)
    before = log.read_bytes()
    capsys.readouterr()
    assert audit("-q", "-f") == 3
    err = capsys.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert log.read_bytes() == before


def test_half_a_line_is_taken_off(here: Path) -> None:
    log = Path("m.audits.jsonl")
    assert audit("-q") == 0
    os.truncate(log, log.stat().st_size - 9)
    assert read_log(log).torn
    assert audit("-q", "-o", "b.report.json") == 0
    found = read_log(log)
    assert not found.torn
    assert [audit.report is None for audit in found.audits] == [True, False]


def test_a_report_that_is_replaced_is_told(here: Path, capsys: Capture) -> None:
    assert audit("-q") == 0
    capsys.readouterr()
    assert audit("-f") == 0
    assert "m.audit.report.json is in m.audits.jsonl, and is replaced" in capsys.readouterr().err


@pytest.mark.parametrize("log", ["in.jsonl", "m.audit.report.json", "m", "absent/x.jsonl", "/dev/null"])
def test_a_log_is_never_what_is_read_or_written(here: Path, log: str, capsys: Capture) -> None:
    before = Path("in.jsonl").read_bytes()
    assert audit("-q", "--log", log) != 0
    assert Path("in.jsonl").read_bytes() == before
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_scores_of_many_models_have_no_log(here: Path, capsys: Capture) -> None:
    Path("s.csv").write_text("score,member\n1,1\n2,1\n0,0\n1,0\n")
    assert run(["audit", "--from-scores", "s.csv", "--log", "x.jsonl", "-q"]) == 2
    assert "remove --log" in capsys.readouterr().err
    assert run(["audit", "--from-scores", "s.csv", "-q"]) == 0
    assert not list(here.glob("*.audits.jsonl"))


# Verified and inspected.


@pytest.mark.forged("logs are tampered with")
def test_verify_shows_where_a_report_stands(here: Path, capsys: Capture) -> None:
    assert audit("-q") == 0
    assert audit("-q", "-o", "b.report.json") == 0
    capsys.readouterr()
    assert run(["verify", "b.report.json", "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "m.audits.jsonl: the audit stands at line 4 of 5, beside 1 other audit; whoever holds the log" in stdout
    os.rename("m.audits.jsonl", "kept")
    assert run(["verify", "b.report.json", "-q"]) == 0
    assert "not checked: the log of audits m.audits.jsonl: it is not at hand" in capsys.readouterr().out


@pytest.mark.forged("logs are tampered with")
@pytest.mark.parametrize(
    ("change", "outcome", "says"),
    few([
        (without(3), Outcome.REFUTED, "does not follow"),
        (
            lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3])),
            Outcome.REFUTED,
            "another log",
        ),
        (
            lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:4])),
            Outcome.INCONCLUSIVE,
            "not that it led to a report",
        ),
        (
            lambda log: written_anew(log, lambda said: said["entry"] not in (2, 3)),
            Outcome.REFUTED,
            "written anew",
        ),
        (lambda _: Path("b.report.json").write_text(Path("b.report.json").read_text() + " "), Outcome.REFUTED,
         "another report than this one"),
    ], 0, 2, 3),
)  # fmt: skip
def test_verify_holds_a_report_against_its_log(
    here: Path, change: Callable[[Path], object], outcome: Outcome, says: str
) -> None:
    assert audit("-q") == 0
    assert audit("-q", "-o", "b.report.json") == 0
    change(Path("m.audits.jsonl"))
    report = decode(Path("b.report.json").read_text(), "report")
    (verdict,), _ = check_log(Path("b.report.json"), report)
    assert verdict.outcome is outcome
    assert says in verdict.reason
    assert run(["verify", "b.report.json", "-q"]) == (1 if outcome is Outcome.REFUTED else 3)


def test_a_log_is_inspected(here: Path, capsys: Capture) -> None:
    assert audit("-q") == 0
    capsys.readouterr()
    assert run(["inspect", "m.audits.jsonl"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    log = read_log(Path("m.audits.jsonl"))
    assert f"the chain of its 3 lines is intact; its head, which identifies them all, is {log.head}" in out
    assert "AUC 0." in out
    assert run(["inspect", "m.audits.jsonl", "--json"]) == 0
    found = decode(capsys.readouterr().out, "stdout")
    assert found.parameters["head"] == log.head
    assert found.parameters["audits"][0]["end"]["report"] == file_digest(Path("m.audit.report.json"))
    without(2)(Path("m.audits.jsonl"))
    assert run(["inspect", "m.audits.jsonl"]) == 3


def test_logs_and_signatures_are_no_part_of_a_model(here: Path) -> None:
    """They may lie in its folder, where an audit of a single file puts them."""
    for name in ("model.audits.jsonl", "model.dsse.json"):
        (here / "m" / name).write_text("{}")
    assert not [path for path in files_of(here / "m") if path.name in ("model.audits.jsonl", "model.dsse.json")]


def test_a_log_that_cannot_be_written_names_its_option(tmp_path: Path) -> None:
    said = pytest.raises(FileSystemError, match="choose another folder for the log of audits, with --log")
    with said, logged(tmp_path / "gone" / "m.audits.jsonl", tmp_path / "r.json", (), {}):
        pass
