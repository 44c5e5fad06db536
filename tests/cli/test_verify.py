"""``privctl verify`` as a command: exit codes, its report, plots, mistakes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.verify.reports import noise, plan


@pytest.fixture
def noisy(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return noise(tmp_path, write_model)


def test_a_genuine_report_passes_and_its_claim_is_labelled(noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(noisy), "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "published 1 0.0001 claimed REFUTED" in stdout
    assert "only claimed, as the report says, and false" in stdout
    assert "convex, replace-one 49.2856 0.0001 conditional PROVED" in stdout
    assert "promises nothing, so it does not fail the report." in stdout


def test_arithmetic_is_not_taken_for_what_it_says_of_refuted_weights(
    noisy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(noisy), "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "The table judges only the report's arithmetic: whether each number follows" in stdout
    assert "checks of files, reports, parameters and noise passed" in stdout
    model = noisy.with_name("m.noised.safetensors")
    weights = bytearray(model.read_bytes())
    weights[-1] ^= 1
    model.write_bytes(weights)
    assert run(["verify", str(noisy), "-q"]) == 1
    stdout = " ".join(capsys.readouterr().out.split())
    warning = stdout.index("A check above is REFUTED, so do not rely on this report.")
    assert stdout.index("REFUTED: m.noised.safetensors") < warning < stdout.index("conditional PROVED")
    assert (
        "judges only its arithmetic: PROVED there promises nothing about this model. guarantee epsilon delta" in stdout
    )
    assert "the report says arithmetic" in stdout
    model.unlink()
    assert run(["verify", str(noisy), "-q"]) == 3
    stdout = " ".join(capsys.readouterr().out.split())
    assert "A check above is INCONCLUSIVE, so what the report states may not be true of this model." in stdout


def test_a_lowered_epsilon_is_refuted_with_a_counterexample(noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(noisy.read_text())
    report["guarantees"][1]["epsilon"] = 10.0
    noisy.write_text(json.dumps(report))
    assert run(["verify", str(noisy), "-q"]) == 1
    stdout = " ".join(capsys.readouterr().out.split())
    assert "the event 'the output lies more than" in stdout
    assert "the epsilon that follows is 49.28" in stdout


def test_a_report_of_its_own(noisy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_path = tmp_path / "verdict.report.json"
    assert run(["verify", str(noisy), "-q", "--json", "-o", str(report_path)]) == 0
    found = read_report(report_path)
    assert json.loads(capsys.readouterr().out) == json.loads(report_path.read_text())
    assert found.step == "verify"
    assert [(p.path, p.digest) for p in found.parents] == [(noisy.name, file_digest(noisy))]
    assert {v.outcome for v in found.verdicts} == {Outcome.PROVED, Outcome.CONSISTENT, Outcome.REFUTED}
    assert run(["verify", str(noisy), "-q", "-o", str(report_path)]) == 2
    # What was verified may be verified again: its chain holds.
    assert run(["verify", str(report_path), "-q"]) == 0


@pytest.mark.slow
def test_a_report_of_no_file_counts_no_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan(tmp_path, "plan")
    capsys.readouterr()
    assert run(["verify", str(path), "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "The report names no file that could be checked, and no fault was found in its parameters." in stdout
    assert "checks of files" not in stdout


@pytest.mark.slow
def test_simulation_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan(tmp_path, "plan")
    capsys.readouterr()
    simulated = ("--simulate", "--seconds", "0.1")
    for name, more in (("loss.svg", simulated), ("loss.png", ())):
        assert run(["verify", str(path), "-q", *more, "--plot", str(tmp_path / name)]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "Simulated:" in stdout
    assert "a toy training of 100 steps: CONSISTENT" in stdout
    assert "it says nothing of delta" in stdout
    drawn = (tmp_path / "loss.svg").read_text()
    assert "what follows, at most" in drawn
    assert "mathdefault" not in drawn
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--seed", "3"), "--seed is for simulations"),
        (("--seconds", "3"), "--seconds is for simulations"),
        (("--text-column", "body"), "--text-column is a field of --data or --public"),
    ],
)
def test_options_of_what_is_not_asked_are_refused(
    noisy: Path, more: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(noisy), "-q", *more]) == 2
    assert says in capsys.readouterr().err


def test_a_model_that_is_not_at_hand_leaves_it_open(noisy: Path) -> None:
    noisy.with_name("m.noised.safetensors").unlink()
    assert run(["verify", str(noisy), "-q"]) == 3


def test_a_swapped_model_is_refuted(noisy: Path) -> None:
    noisy.with_name("m.noised.safetensors").write_bytes(noisy.with_name("m.safetensors").read_bytes())
    assert run(["verify", str(noisy), "-q"]) == 1
    noisy.with_name("m.noised.safetensors").write_text("no model")
    assert run(["verify", str(noisy), "-q"]) == 1


def test_mistakes_are_one_sentence(tmp_path: Path, noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signs = plan(tmp_path, "plan of signs")
    calls = {
        ("nothing.json",): (3, "is not a file"),
        (str(noisy), "--plot", "loss.pdf"): (2, "neither in .svg nor in .png"),
        (str(noisy), "-o", str(noisy), "-f"): (2, "no command edits"),
        (str(noisy), "-o", str(tmp_path / "gone" / "x.json")): (2, "in a folder that does not exist"),
        (str(signs), "--plot", str(tmp_path / "x.svg")): (2, "no guarantee of this report has a privacy loss"),
    }
    for call, (code, says) in calls.items():
        capsys.readouterr()
        assert run(["verify", *call]) == code
        assert says in capsys.readouterr().err


def test_lines_fit_the_terminal_and_verbose_shows_what_passed(noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["verify", str(noisy), "-q"]) == 0
    short = capsys.readouterr().out
    assert run(["verify", str(noisy), "-q", "-v"]) == 0
    long = capsys.readouterr().out
    assert max(map(len, (short + long).splitlines())) <= 80
    assert len(long.splitlines()) > len(short.splitlines())
    assert "its digest is the one recorded" in " ".join(long.split())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda report: report["parents"].append({"path": "/dev/zero", "digest": "blake3:00"}), 3),
        (lambda report: report["outputs"][0].update(path="x" * 5000), 3),
        (lambda report: report.update(outputs=[]), 3),
        (lambda report: report["guarantees"][1].update(name="\x1b[31mred"), 1),
    ],
)
def test_hostile_reports_neither_hang_nor_paint(
    noisy: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, object]], object], code: int
) -> None:
    report = json.loads(noisy.read_text())
    change(report)
    noisy.write_text(json.dumps(report))
    capsys.readouterr()
    assert run(["verify", str(noisy), "-q"]) == code
    captured = capsys.readouterr()
    assert "\x1b[31mred" not in captured.out
    assert "internal" not in captured.err


def test_a_pipe_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.report.json")
    assert run(["verify", str(tmp_path / "pipe.report.json")]) == 3
    assert "is a device or a pipe" in capsys.readouterr().err


def test_inspecting_a_report_says_what_to_do_instead(noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(noisy)]) == 3
    assert f"privctl verify {noisy} to check it" in capsys.readouterr().err
