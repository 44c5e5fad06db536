"""``retrain dp-sgd --batches balls-and-bins``: interrupted, resumed, reported, and refused where it does not fit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.reports.files import read_report
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.steps.sampling import BallsAndBins
from tests.cli.short_runs import dp_sgd, drawn_batches, half_the_noise, interrupted_dp_sgd, prepared, verified_after

RECORDS = 30
OPTIONS = ["--noise-multiplier", "1", "--batch-size", "8", "--epochs", "2", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(tmp_path, RECORDS)


@pytest.mark.slow
def test_a_run_that_was_interrupted_within_a_pass_uses_nobody_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = drawn_batches(monkeypatch, BallsAndBins)
    settings = DpSgdSettings(batches=Batches.BALLS_AND_BINS)
    interrupted_dp_sgd(folder, folder / "out", settings, batch_size=8, epochs=2.0)
    assert set(drawn) == {0}
    call = [
        "retrain",
        "dp-sgd",
        str(folder / "start"),
        "--data",
        str(folder / "train.jsonl"),
        "-o",
        str(folder / "out"),
    ]
    assert run([*call, *OPTIONS, "-q", "--resume"]) == 2  # begun with other batches
    assert run([*call, *OPTIONS, "-q", "--resume", "--batches", "balls-and-bins"]) == 0
    assert sorted(drawn) == list(range(8))
    for first in (0, 4):
        assert Counter(i for step in range(first, first + 4) for i in drawn[step]) == Counter(range(RECORDS))
    assert not (folder / "out.run").exists()
    report = read_report(folder / "out.report.json")
    assert report.mechanism == Ledger(
        events=(SampledGaussian(noise_multiplier=1, sample_rate=0.25, steps=8, batches=Batches.BALLS_AND_BINS),)
    )
    assert report.parameters["batches"] == "balls-and-bins"
    assert report.parameters["batch_size"] == RECORDS / 4


@pytest.mark.slow
@pytest.mark.forged("parameters, ledger and guarantees state half of the noise")
def test_half_of_the_noise_is_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(dp_sgd(folder, folder / "out", *OPTIONS, "--batches", "balls-and-bins", "-q")) == 0
    assert verified_after(folder / "out.report.json", lambda report: None) == 0
    assert verified_after(folder / "out.report.json", half_the_noise) == 1
    assert "REFUTED" in capsys.readouterr().out


def test_what_needs_poisson_batches_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = [
        "retrain",
        "dp-sgd",
        str(folder / "start"),
        "--data",
        str(folder / "train.jsonl"),
        "-o",
        str(folder / "out"),
    ]
    plan = ["--secrets", str(folder / "train.jsonl"), "--noise-multiplier", "1"]
    assert run([*call, *plan, "--batches", "balls-and-bins"]) == 2
    assert "--secrets needs Poisson batches; remove it, or --batches" in capsys.readouterr().err
