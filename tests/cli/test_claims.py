"""``privctl claims``: the table, exit codes, reports, exported proofs and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import z3

from privctl.cli import run
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode
from verify.papers import dp_weights, load_paper
from verify.papers.claim import Judgement, Paper, PublishedClaim

GAUSSIAN = ["claims", "check", "gaussian", "--epsilon", "1", "--delta", "1e-6"]
FERRET = ["claims", "check", "ferret", "--groups", "2", "--steps", "1000", "--sample-rate", "0.005"]
SECRET = ["claims", "check", "secret", "--steps", "500", "--prior", "0.01", "--posterior", "0.2"]
SECRET += ["--noise-multiplier", "1.378"]


@pytest.mark.slow
def test_a_paper_s_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, folder = tmp_path / "claims.json", tmp_path / "proofs"
    arguments = ["claims", "papers", "--paper", "dp-weights", "-o", str(report), "--export", str(folder)]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 100
    for claim in load_paper("dp-weights").claims:
        assert claim.key in out
    assert "613.5312" in out
    assert "EXPECTS" not in out
    assert "18 claims: 5 PROVED, 13 REFUTED" in out
    found = decode(report.read_text(), "report")
    assert found.step == "claims"
    assert len(found.verdicts) == 18
    assert all(verdict.reason for verdict in found.verdicts)
    assert len(found.omissions) == 3
    assert found.parameters["paper"] == ["dp-weights"]
    exported = sorted(folder.glob("*.smt2"))
    assert len(exported) > 20
    solver = z3.Solver()
    solver.from_string((folder / "weights-step-5-corrected.negation.smt2").read_text())
    assert solver.check() == z3.unsat


def test_json_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "papers", "--paper", "poster", "--json"]) == 0
    report = decode(capsys.readouterr().out, "stdout")
    outcomes = {verdict.subject.split(":")[0]: verdict.outcome for verdict in report.verdicts}
    assert outcomes["poster-naive"] is Outcome.PROVED
    assert outcomes["poster-central-limit"] is Outcome.REFUTED


def _book(monkeypatch: pytest.MonkeyPatch, expected: Outcome, found: Outcome) -> None:
    claim = PublishedClaim(
        key="one", statement="It holds.", expected=expected, judge=lambda _: Judgement(outcome=found, reason="so it is")
    )
    monkeypatch.setattr(dp_weights, "PAPER", Paper(title="A paper", claims=(claim,)))


@pytest.mark.parametrize(
    ("expected", "found", "code"),
    [
        (Outcome.REFUTED, Outcome.REFUTED, 0),
        (Outcome.REFUTED, Outcome.PROVED, 1),
        (Outcome.PROVED, Outcome.REFUTED, 1),
        (Outcome.PROVED, Outcome.INCONCLUSIVE, 3),
    ],
)
def test_exit_codes_of_the_book(
    expected: Outcome,
    found: Outcome,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _book(monkeypatch, expected, found)
    assert run(["claims", "papers", "--paper", "dp-weights"]) == code
    assert (f"EXPECTED {expected}" in capsys.readouterr().out) is (expected is not found)


@pytest.mark.slow
def test_a_solver_without_time_is_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "papers", "--paper", "dp-weights", "--timeout", "0.001"]) == 3
    assert "INCONCLUSIVE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([*GAUSSIAN, "--noise-multiplier", "4.225"], 0, "9.9843638116e-7"),
        ([*GAUSSIAN, "--noise-multiplier", "4.224"], 1, "1.00331355902e-6"),
        ([*GAUSSIAN, "--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "100"], 3, "lies between"),
        (["claims", "check", "laplace", "--epsilon", "1/3", "--scale", "3"], 0, "epsilon 0.333333333333"),
        (["claims", "check", "laplace", "--epsilon", "0.333", "--scale", "3"], 1, "S: every output is above 1"),
    ],
)
def test_each_check_prints_its_outcome(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    out = capsys.readouterr().out
    assert says in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_check_ferret_and_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ferret = [*FERRET, "--fire-probability", "0.0721"]
    assert run([*ferret, "--nats", "0.5"]) == 0
    assert run([*ferret, "--nats", "0.1"]) == 1
    assert run([*ferret, "--delta", "1e-5"]) == 1
    assert "0.50105" in capsys.readouterr().out
    secret = [*SECRET, "--record", "0.005x9", "--record", "0.005"]
    assert run([*secret, "-o", str(tmp_path / "r.json"), "-q"]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdicts"][0]["outcome"] == "PROVED"
    assert report["parameters"]["record"] == ["0.005x9", "0.005"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["claims", "papers", "--paper", "unheard-of"], "is not in the book"),
        (["claims", "papers", "--timeout", "0"], "--timeout is 0"),
        ([*GAUSSIAN, "--noise-multiplier", "one"], "one is not a number"),
        ([*GAUSSIAN, "--noise-multiplier", "1/0"], "1/0 is not a number"),
        ([*GAUSSIAN, "--noise-multiplier", "1e999999999"], "is not a number"),
        ([*GAUSSIAN, "--noise-multiplier", "nan"], "nan is not a number"),
        ([*GAUSSIAN, "--noise-multiplier", "-1"], "--noise-multiplier is -1; it must be at least 0"),
        ([*FERRET, "--fire-probability", "1"], "either --nats"),
        ([*SECRET, "--record", "2"], "--record 2 is neither"),
        ([*SECRET, "--record", "0.1x0"], "--record 0.1x0 is neither"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert "Traceback" not in captured.err


def test_nothing_is_overwritten_and_nothing_proved_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("mine")
    assert run([*GAUSSIAN, "--noise-multiplier", "5", "-o", str(kept)]) != 0
    assert capsys.readouterr().out == ""
    assert kept.read_text() == "mine"
    assert run([*GAUSSIAN, "--noise-multiplier", "5", "-o", str(kept), "--force", "-q"]) == 0
    assert kept.read_text() != "mine"
    assert run([*GAUSSIAN, "--noise-multiplier", "5", "--export", str(kept)]) == 2
