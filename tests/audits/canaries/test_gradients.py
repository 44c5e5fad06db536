"""Canary gradients: mixed into a private training by coins, observed, and audited."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.gradients import EVERY_STEP, read_gradient_evidence
from audits.canaries.verdict import claims, curves
from audits.claims import CurveClaim, EpsilonClaim, with_half_noise
from audits.statistics.several_guesses import GuessCount
from audits.statistics.several_guesses import epsilon_bound as bound_of_guesses
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.profile import profile
from privctl.cli import run
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.codec import encode
from privctl.reports.files import read_report
from privctl.storage.digest import NamedFiles
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps import gradient_noise
from privctl.train.steps.gradient_canaries import GradientCanaries
from tests.audits.canaries.small import new_model, texts
from tests.audits.tiny import write_jsonl
from verify.audits import consistency as audit_consistency
from verify.audits.canaries.gradients import check_observed
from verify.audits.canaries.kept_gradients import recount
from verify.run import verify

#: Epsilon 2.0 at delta 1e-5, by the accountant.
SETTINGS = TrainingSettings(
    method="dp-sgd", steps=40, batch_size=20, sample_rate=0.1, learning_rate=0.1, noise_multiplier=1.632
)
LEDGER = Ledger(events=(SampledGaussian(noise_multiplier=1.632, sample_rate=0.1, steps=40),))


def simulated(count: int, noise: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Evidence, Evidence]:
    """Bounds from every step of a training on no records, whose noise is ``noise`` times the stated one."""
    source = np.random.default_rng(seed)
    monkeypatch.setattr("privctl.train.steps.gradient_canaries.os.urandom", lambda size: source.bytes(size))
    parameters = [nn.Parameter(torch.zeros(count // 2 + 1)), nn.Parameter(torch.zeros(count))]
    canaries = GradientCanaries(count, parameters, SETTINGS)
    for step in range(SETTINGS.steps):
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        canaries.add(gradients, SETTINGS.clip_norm, step)
        for gradient in gradients:
            drawn = torch.from_numpy(source.normal(size=gradient.shape))
            gradient += noise * SETTINGS.noise_multiplier * SETTINGS.clip_norm / SETTINGS.batch_size * drawn
        canaries.observe(gradients, SETTINGS.clip_norm, step)
    everything = np.ones(count, np.bool_)
    return bounds_of(register([1] * count), canaries.every_step, everything, canaries.included, 1e-5, 0.0125)


def claim() -> CurveClaim:
    return CurveClaim(
        mechanism=LEDGER, points=profile(LEDGER), source="m.report.json", half=profile(with_half_noise(LEDGER))
    )


def test_an_honest_training_is_not_refuted_and_half_of_the_noise_is(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = claim()
    for seed in range(4):
        found = simulated(5001, 1.0, seed, monkeypatch)
        assert found[0].lower is not None
        assert 0 < found[0].lower < epsilon_bound(LEDGER, 1e-5)
        (honest,) = curves(found, curve)
        assert honest.outcome is not Outcome.REFUTED
    found = simulated(20_001, 0.5, 0, monkeypatch)
    (half,) = curves(found, curve)
    assert half.outcome is Outcome.REFUTED
    assert "not by the mechanism that the report states" in half.reason
    (of_epsilon,) = claims(found, [EpsilonClaim(epsilon=2.5, delta=1e-5)])
    assert of_epsilon.outcome is not Outcome.REFUTED, "which the curve alone shows"
    (few,) = curves(simulated(51, 1.0, 0, monkeypatch), curve)
    assert few.outcome is Outcome.INCONCLUSIVE


def test_canaries_take_part_like_records() -> None:
    parameters = [nn.Parameter(torch.zeros(400))]
    canaries = GradientCanaries(400, parameters, SETTINGS)
    total = torch.zeros(400, dtype=torch.float64)
    for step in range(200):
        gradient = torch.zeros(400)
        canaries.add([gradient], SETTINGS.clip_norm, step)
        assert set(gradient.unique().tolist()) <= {0.0, float(np.float32(canaries.unit(SETTINGS.clip_norm)))}
        total += gradient
    drawn = (total / canaries.unit(SETTINGS.clip_norm)).numpy()
    assert not drawn[~canaries.included].any(), "one that is left out never takes part"
    assert drawn[canaries.included].mean() == pytest.approx(200 * 0.1, abs=6 * (18 / 200) ** 0.5)
    assert canaries.unit(SETTINGS.clip_norm) * SETTINGS.batch_size <= SETTINGS.clip_norm
    with pytest.raises(CommandError, match="trains 400 numbers only"):
        GradientCanaries(401, parameters, SETTINGS)


def test_state_goes_on_where_it_was_saved() -> None:
    parameters = [nn.Parameter(torch.zeros(50))]
    first, second = (GradientCanaries(20, parameters, SETTINGS) for _ in range(2))
    first.observe([torch.randn(50)], SETTINGS.clip_norm, 0)
    second.restore(first.tensors())
    assert (second.included == first.included).all()
    assert (second.every_step == first.every_step).all()
    gradient = torch.randn(50)
    first.observe([gradient], SETTINGS.clip_norm, 1)
    second.observe([gradient], SETTINGS.clip_norm, 1)
    assert (second.every_step == first.every_step).all()
    parameters[0].data[:] = torch.arange(50.0)
    assert (second.end(parameters) == first.end(parameters)).all()
    old = {name: value for name, value in first.tensors().items() if name != "canaries.key"}
    with pytest.raises(InputError, match="an older privctl's"):
        second.restore(old)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gradients")
    write_jsonl(folder / "data.jsonl", texts(40, 1))
    new_model(folder / "start")
    return folder


def trained(folder: Path, name: str, count: int, *more: str) -> int:
    common = ["--batch-size", "4", "--steps", "20", "--epsilon", "2", "--delta", "1e-5", "--device", "cpu", "-q"]
    canaries = ["--gradient-canaries", str(count), "--data", str(folder / "data.jsonl"), "-o", str(folder / name)]
    return run(["retrain", "dp-sgd", str(folder / "start"), *canaries, *common, *more])


def audited(folder: Path, name: str, *more: str, evidence: Path | None = None) -> tuple[int, PrivacyReport]:
    file = evidence or folder / f"{name}.gradient-canaries.json"
    code = run(["audit", "canaries", str(folder / name), "--canaries", str(file), "--device", "cpu", "-q", "-f", *more])
    return code, read_report(folder / f"{name}.audit.report.json")


def _with_more_right(audit: PrivacyReport, item: Evidence, more: int) -> PrivacyReport:
    """The audit with so many more right guesses of the last set behind ``item``, and the bound that they give."""
    last = int(item.details["sets"])
    details = {**item.details, f"correct {last}": item.details[f"correct {last}"] + more}
    canaries, sets = item.samples["canaries"], range(1, last + 1)
    pairs = [(int(details[f"guesses {i}"]), int(details[f"correct {i}"])) for i in sets]
    counts = [GuessCount(canaries=canaries, guesses=guesses, correct=right) for guesses, right in pairs]
    bound, best = bound_of_guesses(counts, item.details["delta"], 1 - item.confidence)
    samples = {"canaries": counts[best].canaries, "guesses": counts[best].guesses}
    changed = replace(item, estimate=bound, lower=bound, details=details, samples=samples)
    return replace(audit, evidence=tuple(changed if each is item else each for each in audit.evidence))


def _counted(path: Path, audit: PrivacyReport) -> tuple[tuple[Outcome, ...], str]:
    """What is found by what the audit kept alone, and what is omitted."""
    assert list(check_observed(path, audit, ())) == []
    found = recount(path, audit, NamedFiles())
    return tuple(verdict.outcome for verdict in found.verdicts), "; ".join(
        omission.reason for omission in found.omissions
    )


def on_the_curve(report: PrivacyReport) -> Verdict:
    (found,) = [verdict for verdict in report.verdicts if "the mechanism stated in" in verdict.subject]
    return found


def test_a_run_and_its_audit(start: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert trained(start, "model", 301) == 0
    path = start / "model.gradient-canaries.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_gradient_evidence(path)
    assert len(found.included) == 301
    report = read_report(start / "model.report.json")
    assert report.parameters["gradient_canaries"] == 301
    assert any("not for release: its weights hold the gradients of 301 canaries" in line for line in report.warnings)
    assert report.guarantees[0].epsilon == pytest.approx(2, abs=1e-3), "the records' guarantee is what was asked for"
    capfd.readouterr()

    code, audit = audited(start, "model")
    assert code == 0
    by_step, at_end = (e for e in audit.evidence if e.quantity.startswith("epsilon"))
    assert by_step.quantity == f"epsilon, {EVERY_STEP}"
    assert by_step.lower is not None
    assert by_step.lower < 2
    assert at_end.confidence == by_step.confidence == 1 - 0.025
    states = {condition["name"]: condition["state"] for condition in audit.parameters["canary_conditions"]}
    assert states["trained on the planted data"] == "checked"
    assert on_the_curve(audit).outcome is Outcome.CONSISTENT
    assert list(audit_consistency.faults(audit)) == []

    forged = {
        "is not what": replace(
            audit, evidence=tuple(replace(e, lower=1.0, estimate=1.0) if e is at_end else e for e in audit.evidence)
        ),
        "does not have delta": replace(
            audit, parameters={**audit.parameters, "canary_curve": [[0.0, 0.01], [1.0, 1e-4]]}
        ),
        "do not refute it": replace(
            audit,
            verdicts=tuple(
                replace(v, outcome=Outcome.REFUTED) if v == on_the_curve(audit) else v for v in audit.verdicts
            ),
        ),
        "has no verdict on it": replace(
            audit, verdicts=tuple(v for v in audit.verdicts if v != on_the_curve(audit))
        ),
    }  # fmt: skip
    for sentence, changed in forged.items():
        assert any(sentence in fault for fault in audit_consistency.faults(changed)), (sentence, encode(changed)[:0])

    report_path = start / "model.audit.report.json"
    assert verify(report_path, audit).exit_code is ExitCode.OK
    for each in (by_step, at_end):
        for more in (-3, 3):
            lied = _with_more_right(audit, each, more)
            faults = (fault for fault in audit_consistency.faults(lied) if "noise multiplier" not in fault)
            assert list(faults) == [], "the bound is what these counts give"
            (wrong,) = (v for v in check_observed(report_path, lied, ()) if v.outcome is Outcome.REFUTED)
            assert "guesses were right, and model.gradient-canaries.json gives" in wrong.reason
    kept = tmp_path / "away" / "model.audit.report.json"
    kept.parent.mkdir()
    assert "is the report's word" in _counted(kept, audit)[1]
    shutil.copy(start / audit.outputs[0].path, kept.parent)
    assert _counted(kept, audit) == ((Outcome.CONSISTENT,), "")
    assert _counted(kept, _with_more_right(audit, at_end, 3)) == ((Outcome.REFUTED,), "")

    edited = tmp_path / "edited.json"
    edited.write_text(path.read_text().replace('"included": [0', '"included": [1', 1).replace('"steps"', '"steps" '))
    code, audit = audited(start, "model", evidence=edited)
    assert all(item.lower is None and "another file" in item.reason for item in audit.evidence)


def test_observations_of_another_training_bound_nothing(start: Path) -> None:
    """The file would be believed, and refute the guarantees of a training without canaries or of noise added later."""
    assert trained(start, "with", 41, "--steps", "2") == 0
    plain = start / "plain"
    common = ["--data", str(start / "data.jsonl"), "--steps", "2", "--batch-size", "4", "--epsilon", "2", "-q"]
    assert run(["retrain", "dp-sgd", str(start / "start"), "-o", str(plain), "--device", "cpu", *common]) == 0
    noised = start / "noised"
    assert run(["noise", str(start / "with"), "-o", str(noised), "--noise-stddev", "0.1", "-q"]) == 0
    for model in (plain, noised):
        _, audit = audited(start, model.name, evidence=start / "with.gradient-canaries.json")
        assert all(item.lower is None and "no training with canary" in item.reason for item in audit.evidence)


def test_wrong_files_and_settings(start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained(start, "none", 1) == 2
    assert "--gradient-canaries is 1" in capfd.readouterr().err
    good = {
        "kind": "privctl-gradient-canaries", "version": 1, "created": "x", "model": "m", "delta": 1e-5,
        "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 3,
        "included": [0, 1], "every_step": [0.0, 1.0], "end": [0.0, 1.0],
    }  # fmt: skip
    for change, sentence in (
        ({"included": [0, 2]}, "each 0 or 1"),
        ({"end": [0.0]}, "a finite number for each"),
        ({"version": 2}, "version is 2"),
        ({"kind": "x"}, "holds no observations"),
    ):
        path = tmp_path / "bad.json"
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(InputError, match=sentence):
            read_gradient_evidence(path)


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), ("--bands", "3"), ("--buffers", "2")])
def test_half_of_the_noise_in_a_real_training(
    way: tuple[str, ...], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = gradient_noise.KeyedNoise.release
    for kind, share, code in (("honest", 1.0, 0), ("half", 0.5, 1)):
        name = "-".join([kind, *way])
        monkeypatch.setattr(
            gradient_noise.KeyedNoise,
            "release",
            lambda self, tensors, stddev, step, share=share: release(self, tensors, stddev * share, step),
        )
        assert trained(start, name, 20_001, "--steps", "60", "--learning-rate", "1e-4", *way) == 0
        found, report = audited(start, name)
        assert found == code
        assert (on_the_curve(report).outcome is Outcome.REFUTED) is (code == 1)
