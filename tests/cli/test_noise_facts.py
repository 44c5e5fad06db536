"""The facts of ``privctl noise`` from the model's own report, and the message where none are known."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import Status
from privctl.domain.mechanism import ClippedTraining
from privctl.domain.report import PrivacyReport
from privctl.reports.files import file_artifact, now, versions, write_report
from tests.cli.noised import FACTS, WEIGHTS, report_at, snapshot


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "m.safetensors", WEIGHTS)


TRAINING = ClippedTraining(epochs=10, learning_rate=5e-5, clip_norm=1, dataset_size=1000, batch_size=5)


@pytest.fixture
def trained(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    """A model with the report that training writes beside it."""
    path = write_model(
        tmp_path / "t.safetensors", {"w": WEIGHTS["embed"]}, {"format": "pt", "privctl.report": "t.report.json"}
    )
    return with_report(path, TRAINING)


def with_report(path: Path, mechanism: ClippedTraining | Ledger | None) -> Path:
    report_path = path.with_name(f"{path.stem}.report.json")
    report = PrivacyReport(
        step="retrain",
        created=now(),
        versions=versions(()),
        mechanism=mechanism,
        parameters={"initial_weights": "random"},
        outputs=(file_artifact("model", path, report_path),),
    )
    write_report(report_path, report)
    return path


def test_a_model_with_a_training_report_needs_no_flags(trained: Path) -> None:
    assert run(["noise", str(trained), "-q", "--calibration", "published"]) == 0
    report = report_at(trained.with_name("t.noised.report.json"))
    statuses = {g.name: g.status for g in report.guarantees}
    assert statuses == {"published": Status.CLAIMED, "convex": Status.CONDITIONAL, "nonconvex": Status.CONDITIONAL}
    assert [p.path for p in report.parents] == ["t.report.json"]


def test_a_report_beside_the_model_gives_the_facts_without_a_pointer(
    tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    """Other tools leave out what they do not know of a header."""
    path = with_report(write_model(tmp_path / "t.safetensors", {"w": WEIGHTS["embed"]}), TRAINING)
    assert run(["noise", str(path), "-q"]) == 0
    assert [p.path for p in report_at(tmp_path / "t.private.report.json").parents] == ["t.report.json"]


@pytest.mark.parametrize("header", [True, False])
def test_a_renamed_model_is_known_by_its_renamed_report(
    tmp_path: Path, write_model: Callable[..., Path], header: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise on a training without clipping was accepted with made-up facts where both had been renamed."""
    metadata = {"metadata": {"privctl.report": "old.report.json"}} if header else {}
    path = write_model(tmp_path / "new.safetensors", {"w": WEIGHTS["embed"]}, **metadata)
    with_report(path, None).with_name("new.report.json").rename(tmp_path / "renamed.report.json")
    assert run(["noise", str(path), *FACTS]) == 3
    assert "was trained without clipping, as its report" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("change", ["other bytes", "other size", "no report"])
def test_a_report_beside_the_model_that_is_not_its_own_gives_nothing(
    tmp_path: Path, write_model: Callable[..., Path], change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_report(write_model(tmp_path / "t.safetensors", {"w": WEIGHTS["embed"]}), TRAINING)
    if change == "no report":
        (tmp_path / "t.report.json").write_text("{}")
    else:
        write_model(path, {"w": WEIGHTS["embed" if change == "other bytes" else "half"] * 2})
    assert run(["noise", str(path), "-q"]) == 2
    assert "these facts are not known: epochs" in capsys.readouterr().err


@pytest.mark.parametrize("facts", [[], FACTS], ids=["no facts", "facts"])
def test_no_noise_follows_from_a_training_without_clipping(
    tmp_path: Path, write_model: Callable[..., Path], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_report(write_model(tmp_path / "t.safetensors", {"w": WEIGHTS["embed"]}), None)
    before = snapshot(tmp_path)
    assert run(["noise", str(path), *facts]) == 3
    stderr = " ".join(capsys.readouterr().err.split())
    assert "was trained without clipping, as its report" in stderr
    assert "privctl retrain clipped" in stderr
    assert "privctl retrain dp-sgd" in stderr
    assert snapshot(tmp_path) == before
    write_model(path, {"w": WEIGHTS["embed"] * 2})  # the report is of other weights now
    assert run(["noise", str(path), "-q", *FACTS]) == 0


def test_more_noise_on_a_private_training_is_refused_unless_facts_are_stated(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(events=(SampledGaussian(noise_multiplier=1, sample_rate=0.01, steps=10),))
    path = with_report(write_model(tmp_path / "t.safetensors", {"w": WEIGHTS["embed"]}), ledger)
    assert run(["noise", str(path)]) == 3
    assert "was trained privately, as its report" in capsys.readouterr().err
    assert run(["noise", str(path), "-q", *FACTS]) == 0


def test_the_example_for_missing_facts_is_a_command_that_runs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["noise", str(model)]) == 2
    example = shlex.split(capsys.readouterr().err.split("such as: ")[1])
    assert example[:3] == ["privctl", "noise", str(model)]
    assert run([*example[1:], "-q"]) == 0


def test_a_dry_run_without_facts_shows_what_each_would_give(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(tmp_path)
    assert run(["noise", str(model), "--dry-run"]) == 0
    stdout = capsys.readouterr().out
    assert snapshot(tmp_path) == before
    assert len(stdout.splitlines()) <= 40
    assert stdout.count("missing  nothing; --") == 5
    assert run(["noise", str(model), "--dry-run", "--epochs", "3", "--batch-size", "2000", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["known"] == {"epochs": 3, "batch_size": 2000}
    assert answer["missing"] == ["learning_rate", "clip_norm", "dataset_size"]
    rows = {(row["fact"], row["value"]): row for row in answer["typical"]}
    assert ("dataset_size", 1000) not in rows, "smaller than its batches"
    row = rows["learning_rate", 1e-3]
    stated = ["--epochs", "3", "--batch-size", "2000", "--learning-rate", "1e-3", "--clip-norm", "1"]
    assert run(["noise", str(model), "--dry-run", "--json", *stated, "--dataset-size", "10000"]) == 0
    plan = json.loads(capsys.readouterr().out)["candidates"][0]
    assert row["noise_stddev"] == pytest.approx(plan["noise_stddev"], rel=1e-12)
    assert row["published_noise_stddev"] == pytest.approx(plan["published_noise_stddev"], rel=1e-12)
    assert row["delta"] == plan["delta"]


def test_a_dry_run_names_the_report_and_the_file_that_state_facts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text('{"epochs": 10, "delta": 1e-5, "optimizer": "adam"}')
    call = ["noise", str(model), "--dry-run", "--facts", str(facts), "--epsilon", "4"]
    assert run(call) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert f"epochs 10 {facts}" in stdout
    assert f"optimizer adam {facts}" in stdout
    assert "epsilon 4 and any loss, delta 1e-05" in stdout
    assert run([*call, "--regime", "convex"]) == 0  # which says nothing of adam: no noise is shown
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("learning_rate ")]
    assert [row[-3:-1] for row in rows[1:]] == [["-", "-"]] * 3


def test_facts_of_another_files_report_are_refused(trained: Path, tmp_path: Path, capsys: Any) -> None:
    with trained.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x00")
    before = snapshot(tmp_path)
    assert run(["noise", str(trained), "-q"]) == 3
    assert "digest differs" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_a_flag_that_contradicts_the_report_is_refused(trained: Path, capsys: Any) -> None:
    assert run(["noise", str(trained), "--batch-size", "6"]) == 3
    assert "batch_size" in capsys.readouterr().err
