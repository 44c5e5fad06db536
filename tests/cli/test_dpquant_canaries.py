"""``retrain dpquant --gradient-canaries``: trained, verified, audited, gated, stopped and resumed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from audits.canaries.gradients import read_gradient_evidence
from audits.canaries.stated_noise import METHOD
from privctl.cli import run
from privctl.domain.errors import RunInterruptedError
from privctl.domain.progress import unseen
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from privctl.train.methods import method_named
from privctl.train.methods.dpquant.settings import DpquantSettings, Sensitivity
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.settings.choices import FormatName
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.settings.session import Session
from privctl.train.steps.gradient_noise import KeyedNoise
from tests.cli.short_runs import prepared, verified_after

RECORDS, STEPS, COUNT = 12, 4, 4001
#: Everybody is in each step: four of them at this noise are one release of noise multiplier 1.
OPTIONS = ["--noise-multiplier", "2", "--batch-size", str(RECORDS), "--steps", str(STEPS), "--device", "cpu"]
PRIVATE = ["--sensitivity", "private", "--measure-every", "4"]
APART = "takes part in no measurement of layers, so canaries show the noise of the steps alone"
UNTESTED = "no canary takes part in measurements of layers: the mechanism is tested without them, by its steps alone"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("canaries"), RECORDS)


def call(start: Path, output: Path, *more: str) -> list[str]:
    usual = ["--data", str(start / "train.jsonl"), "-o", str(output), "--micro-tokens", "160", "--format", "luq-fp4"]
    canaries = ["--gradient-canaries", str(COUNT)]
    return ["retrain", "dpquant", str(start / "start"), *usual, *OPTIONS, *canaries, "-q", *more]


def audited(output: Path) -> PrivacyReport:
    evidence = output.with_name(f"{output.name}.gradient-canaries.json")
    code = run(["audit", "canaries", str(output), "--canaries", str(evidence), "--device", "cpu", "-q"])
    audit = read_report(output.with_name(f"{output.name}.audit.report.json"))
    assert code == int(on_the_mechanism(audit) is Outcome.REFUTED)
    return audit


def on_the_mechanism(audit: PrivacyReport) -> Outcome:
    (verdict,) = [verdict for verdict in audit.verdicts if "the mechanism stated in" in verdict.subject]
    return verdict.outcome


def with_half_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KeyedNoise.release

    def half(self: KeyedNoise, tensors: Any, stddev: float, step: int) -> None:
        whole(self, tensors, stddev / 2, step)

    monkeypatch.setattr(KeyedNoise, "release", half)


def test_a_run_says_what_it_is(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    more = [*PRIVATE, "--gradient-canaries", "20", "--steps", "1"]
    assert run([argument for argument in call(start, output, *more) if argument != "-q"]) == 0
    stderr = " ".join(capsys.readouterr().err.split())
    evidence = tmp_path / "out.gradient-canaries.json"
    assert f"audit it: privctl audit canaries {output} --canaries {evidence}" in stderr
    report = read_report(tmp_path / "out.report.json")
    assert len(read_gradient_evidence(evidence).included) == report.parameters["gradient_canaries"] == 20
    assert report.parameters["gradient_canaries_file"] == file_digest(evidence)
    assert any(APART in line for line in report.warnings)
    stated = report.guarantees[0].epsilon
    assert stated is not None
    assert f"the {stated:.4g} that this training states" in stderr, "of steps and measurements together"


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], PRIVATE], ids=["synthetic", "private"])
@pytest.mark.parametrize("half", [False, True], ids=["whole", "half"])
def test_half_of_the_noise_of_the_steps_is_noticed(
    more: list[str], half: bool, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if half:
        with_half_of_the_noise(monkeypatch)
    assert run(call(start, tmp_path / "out", *more)) == 0
    report = read_report(tmp_path / "out.report.json")
    assert report.parameters["gradient_canaries"] == COUNT
    (warning,) = [line for line in report.warnings if "not for release" in line]
    assert (APART in warning) is bool(more)
    assert run(["verify", str(tmp_path / "out"), "-q"]) == 0, "what is stated hangs together, whatever was done"

    audit = audited(tmp_path / "out")
    assert (on_the_mechanism(audit) is Outcome.REFUTED) is half
    assert (UNTESTED in audit.warnings) is bool(more)
    events = json.loads((tmp_path / "out.report.json").read_text())["mechanism"]["events"]
    assert len(events) == 1 + bool(more)
    assert audit.parameters["canary_mechanism"]["events"] == events[:1], "canaries are in no measurement"
    (noise,) = [item for item in audit.evidence if item.method == METHOD]
    assert noise.upper is not None
    assert (noise.upper < 2) is half
    assert run(["verify", str(tmp_path / "out.audit.report.json"), "-q"]) == 0
    assert run(["gate", str(tmp_path / "out"), "--max-epsilon", "100", "-q"]) == 1, "it is not for release"
    unsaid = {line: line.replace(f", and {APART}", "") for line in report.warnings}
    assert verified_after(tmp_path / "out.report.json", lambda read: read.update(warnings=[*unsaid.values()])) == int(
        bool(more)
    )


@pytest.mark.slow
def test_what_was_seen_before_an_interruption_is_in_the_file(start: Path, tmp_path: Path) -> None:
    settings = DpquantSettings(
        format=FormatName.LUQ_FP4, sensitivity=Sensitivity.PRIVATE, every=4, gradient_canaries=COUNT
    )
    request = RetrainRequest(
        method=method_named("dpquant"), settings=settings, model=ModelRequest(path=start / "start"),
        data=DataRequest(train=start / "train.jsonl"), budget=BudgetRequest(noise_multiplier=2.0),
        output=tmp_path / "out", batch_size=RECORDS, steps=STEPS, device="cpu", micro_tokens=160,
    )  # fmt: skip
    with pytest.raises(RunInterruptedError):
        run_training(prepare(request), Session(progress=unseen, interrupts=nullcontext(lambda: True)))
    (state,) = (tmp_path / "out.run").glob("state-*.safetensors")
    before = {key: value.clone() for key, value in load_file(state).items() if key.startswith("canaries.")}
    assert run([*call(start, tmp_path / "out", *PRIVATE, "--gradient-canaries", "5"), "--resume"]) == 2
    assert run([*call(start, tmp_path / "out", *PRIVATE), "--resume"]) == 0
    found = read_gradient_evidence(tmp_path / "out.gradient-canaries.json")
    assert list(found.included) == before["canaries.included"].tolist(), "coins are not drawn again"
    assert on_the_mechanism(audited(tmp_path / "out")) is not Outcome.REFUTED
    assert run(["verify", str(tmp_path / "out"), "-q"]) == 0
