"""``privctl retrain dpquant`` whose layers are measured on made-up inputs: it costs no epsilon and reads no record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from tests.cli.dpquant_runs import WORDS, alike, call, records, report_of
from tests.models.tasks.small import architecture, words
from tests.verify.kinds import verified


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``start``, which left ``private.report.json``; beta is so large that the worst layers are left alone."""
    folder = tmp_path_factory.mktemp("synthetic")
    words().tokenizer.save_pretrained(architecture(folder / "start", "gpt2"))
    synthetic(folder / "start", records(folder / "train.jsonl"), folder / "private", "--beta", "1e9")
    return folder


def synthetic(start: Path, data: Path, output: Path, *more: str) -> PrivacyReport:
    """The report of a run that measures on made-up inputs, with a public seed."""
    asked = ("--epsilon", "3", "--epochs", "3", "--public-seed", "00ff", *more)
    assert run(call(start, data, output, *asked)) == 0
    return report_of(output)


def without_a_premise(report: Any) -> None:
    premises = report["guarantees"][0]["assumptions"]
    report["guarantees"][0]["assumptions"] = [p for p in premises if p["name"] != "synthetic measurements"]


def called_private(report: Any) -> None:
    report["parameters"]["sensitivity"] = "private"


def with_other_scores(epoch: int, change: float) -> Callable[[Any], None]:
    def edit(report: Any) -> None:
        scores = report["parameters"]["layer_schedule"][epoch]["scores"]
        scores[0] += change

    return edit


def with_measurements(report: Any) -> None:
    report["parameters"] |= {"measurements_begun": 2, "measurements_planned": 2}


def of_inputs_that_are_not_stated(report: Any) -> None:
    """As a run that measured private examples without counting it would say nothing."""
    for name in ("sensitivity", "measured_synthetic_inputs"):
        report["parameters"].pop(name)


def test_made_up_inputs_cost_no_epsilon(honest: Path) -> None:
    report = report_of(honest / "private")
    assert isinstance(report.mechanism, Ledger)
    (training,) = report.mechanism.events
    assert isinstance(training, SampledGaussian)
    (guarantee,) = report.guarantees
    assert training.noise_multiplier == pytest.approx(
        noise_multiplier_for(3, guarantee.delta, alike(training)), rel=1e-3
    )
    premise = next(a for a in guarantee.assumptions if a.name == "synthetic measurements")
    assert premise.state is AssumptionState.ENFORCED
    parameters = report.parameters
    assert (parameters["sensitivity"], parameters["measured_synthetic_inputs"]) == ("synthetic", 32)
    assert "measurements_begun" not in parameters
    history, names = parameters["layer_schedule"], parameters["layer_names"]
    assert history[0]["scores"] == history[1]["scores"] != history[2]["scores"]
    for entry in history:
        hurt = sorted(names, key=dict(zip(names, entry["scores"], strict=True)).__getitem__)
        assert set(entry["quantized"]) == set(hurt[:7])


def test_what_made_up_inputs_cannot_give_is_noticed(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_path = honest / "private.report.json"
    assert run(["verify", str(report_path)]) == 0, capsys.readouterr().out
    text = report_path.read_text()
    for edit, expected in {
        without_a_premise: "synthetic measurements",
        called_private: "what layers are measured on",
        with_other_scores(0, -1e9): "never below 0",
        with_other_scores(1, 1.0): "the scores of epoch 1 are new",
        with_measurements: "2 measurements of private records began",
        of_inputs_that_are_not_stated: "measurements begin, and it states 0",
    }.items():
        edited = json.loads(text)
        edit(edited)
        report_path.write_text(json.dumps(edited))
        found = verified(report_path)
        assert found is not None, edit
        assert found.exit_code is ExitCode.REFUTED, edit
        reasons = [
            verdict.reason for verdict in (*found.verdicts, *(guarantee.verdict for guarantee in found.guarantees))
        ]
        assert any(expected in reason for reason in reasons), (edit, reasons)
    report_path.write_text(text)


def test_scores_of_made_up_inputs_are_the_same_whatever_the_records(honest: Path, tmp_path: Path) -> None:
    expected = report_of(honest / "private").parameters["layer_schedule"][0]["scores"]
    assert scores_on_others(honest, tmp_path) == expected


@pytest.mark.slow
def test_scores_of_the_run_s_own_records_in_their_place_are_others(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = report_of(honest / "private").parameters["layer_schedule"][0]["scores"]
    monkeypatch.setattr("privctl.train.methods.dpquant.run.synthetic_inputs", lambda task, _: task)
    assert scores_on_others(honest, tmp_path) != expected


def scores_on_others(honest: Path, folder: Path) -> list[float]:
    """The first scores of a run of the same start on other records."""
    others = folder / "others.jsonl"
    others.write_text("".join(json.dumps({"text": f"a cat {word} {word}"}) + "\n" for word in WORDS * 6))
    report = synthetic(honest / "start", others, folder / "out", "--epochs", "1", "--batch-size", "60")
    found: list[float] = report.parameters["layer_schedule"][0]["scores"]
    return found
