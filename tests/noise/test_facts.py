"""Training facts from flags, a file and a report: merged, contradictions refused, gaps listed at once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import CommandError, InputError, PrivctlError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.guarantee import AssumptionState
from privctl.domain.mechanism import Calibration, ClippedTraining, Optimizer, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.noise.facts import FactSource, from_file, from_flags, from_report, training_facts

FULL = {"epochs": 10, "learning_rate": 5e-5, "clip_norm": 1.0, "dataset_size": 1000, "batch_size": 5}
TRAINING = ClippedTraining(**FULL)  # type: ignore[arg-type]


def test_a_plan_or_a_private_training_holds_no_facts_of_clipped_training() -> None:
    ledger = Ledger(events=(SampledGaussian(noise_multiplier=1, sample_rate=0.01, steps=10),))
    report = PrivacyReport(step="retrain", created="2026-01-02T03:04:05Z", versions={}, mechanism=ledger)
    assert from_report(Path("r.json"), report) is None


def test_everything_missing_is_listed_at_once() -> None:
    with pytest.raises(CommandError) as caught:
        training_facts([from_flags({"epochs": 3, "clip_norm": None})])
    text = str(caught.value)
    assert all(flag in text for flag in ("--learning-rate", "--clip-norm", "--dataset-size", "--batch-size"))
    assert "--epochs" not in text


def test_flags_complete_a_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({k: v for k, v in FULL.items() if k != "epochs"}))
    training, trust = training_facts([from_file(path), from_flags({"epochs": 10})])
    assert training == TRAINING
    assert trust.state is AssumptionState.ASSERTED


def test_dashes_serve_as_underscores(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({k.replace("_", "-"): v for k, v in FULL.items()}))
    assert training_facts([from_file(path)])[0] == TRAINING


def test_two_sources_that_disagree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(FULL))
    with pytest.raises(InputError, match=r"facts\.json says batch_size 5 but the command line says 6"):
        training_facts([from_file(path), from_flags({"batch_size": 6})])


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"epochs": 1, "epochs": 2}', "twice"),
        ('{"batch-size": 1, "batch_size": 2}', "twice"),
        ('{"epoch": 1}', "unknown fact 'epoch'"),
        ('{"epochs": 1.5}', "whole number"),
        ('{"epochs": true}', "whole number"),
        ('{"learning_rate": "5e-5"}', "a number"),
        ('{"learning_rate": NaN}', "NaN"),
        ('{"optimizer": "lion"}', "sgd"),
        ('{"optimizer": ["sgd"]}', "sgd"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, because: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(InputError, match=because):
        from_file(path)


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"batch_size": 2000}, "exceeds dataset_size"),
        ({"steps": 7}, "contradicts"),
        ({"momentum": 0.9}, "momentum"),
        ({"optimizer": "momentum"}, "momentum"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"weight_decay": 1e6}, "weight_decay"),
        ({"smoothness": 1.0, "strong_convexity": 2.0}, "strong_convexity"),
    ],
)
@pytest.mark.parametrize("typed", [True, False])
def test_facts_that_contradict_each_other(change: dict[str, Any], because: str, typed: bool) -> None:
    values = {**FULL, **change}
    source = from_flags(values) if typed else FactSource("facts.json", values)
    because = because.replace("_", "-") if typed and not because.startswith("exceeds") else because
    with pytest.raises(PrivctlError, match=because) as caught:
        training_facts([source])
    assert caught.type is (CommandError if typed else InputError)


def report(step: str, mechanism: Any) -> PrivacyReport:
    return PrivacyReport(
        step=step,
        created="2026-01-01T00:00:00Z",
        versions={},
        mechanism=mechanism,
        parameters={"initial_weights": "random"},
    )


def test_a_training_report_enforces_its_facts() -> None:
    source = from_report(Path("r.json"), report("retrain", TRAINING))
    assert source is not None
    training, trust = training_facts([source])
    assert (training, trust.state) == (TRAINING, AssumptionState.ENFORCED)


def test_repeating_an_enforced_fact_changes_nothing_but_adding_one_does() -> None:
    source = from_report(Path("r.json"), report("retrain", TRAINING))
    assert source is not None
    assert training_facts([source, from_flags({"epochs": 10})])[1].state is AssumptionState.ENFORCED
    # a statement about the loss is an assumption of its regime, not of the training
    assert training_facts([source, from_flags({"smoothness": 2.0})])[1].state is AssumptionState.ENFORCED
    assert training_facts([source, from_flags({"steps": 2000})])[1].state is AssumptionState.ASSERTED


def test_training_that_did_not_start_from_random_weights_is_only_asserted() -> None:
    source = from_report(Path("r.json"), replace(report("retrain", TRAINING), parameters={}))
    assert source is not None
    assert training_facts([source])[1].state is AssumptionState.ASSERTED


def test_facts_once_asserted_stay_asserted() -> None:
    noise = WeightNoise(training=TRAINING, noise_stddev=0.1, dimension=1, calibration=Calibration.DP_WEIGHTS)
    source = from_report(Path("r.json"), report("noise", noise))
    assert source is not None
    assert training_facts([source])[1].state is AssumptionState.ASSERTED


def test_a_report_without_training_says_nothing() -> None:
    assert from_report(Path("r.json"), report("audit", None)) is None


def test_optimizer_names_become_optimizers() -> None:
    training, _ = training_facts([from_flags({**FULL, "optimizer": "adamw"})])
    assert training.optimizer is Optimizer.ADAMW
