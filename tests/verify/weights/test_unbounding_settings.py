"""Settings under which no bound on the weights would follow do not make any weights pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from privctl.domain.errors import ExitCode
from tests.verify.kinds import Gate, Kind, Kinds
from verify.run import Verification, read, verify

Report = dict[str, Any]


def judged(kind: Kind, report: Report) -> tuple[Verification, str]:
    """The verification of ``report`` in place of a kind's, and what a gate says of it, if one judges the kind."""
    report_path = kind.path.with_name("mutant.report.json")
    report_path.write_text(json.dumps(report))
    try:
        outcome = "no gate" if kind.policy is None else str(Gate(kind).judged(report_path).outcome)
        return verify(report_path, read(report_path)), outcome
    finally:
        report_path.unlink()


def edited(kind: Kind, **parameters: object) -> tuple[Verification, str]:
    """The same of a kind's report with other parameters."""
    report = json.loads(kind.path.read_text())
    report["parameters"] |= parameters
    return judged(kind, report)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"learning_rate": 0.0}, "was not trained, but is not what it began as"),
        ({"learning_rate": 1e-300}, "was not trained, but is not what it began as"),
        ({"updates": 0}, "was not trained, but is not what it began as"),
        ({"clip_norm": 1e-200}, "clip_norm 1e-200, which no training has"),
        ({"warmup_steps": 10**12}, "moved by"),
    ],
)
def test_a_setting_that_would_prevent_the_comparison_is_refuted(
    kinds: Kinds, changed: dict[str, object], word: str
) -> None:
    found, _ = edited(kinds["dp-sgd"], **changed)
    assert found.exit_code is ExitCode.REFUTED
    assert any(verdict.subject == "weights" and word in verdict.reason for verdict in found.verdicts)


def test_decay_that_bounds_nothing_leaves_the_weights_open(kinds: Kinds) -> None:
    found, _ = edited(kinds["dp-sgd"], weight_decay=1e6)
    assert found.exit_code is ExitCode.BAD_INPUT
    (reason,) = [verdict.reason for verdict in found.verdicts if verdict.subject == "weights"]
    assert reason == "weight decay times the learning rate is 1 or more, so the weights could be any training's"


def test_a_public_seed_that_is_no_number_ends_no_check(kinds: Kinds) -> None:
    found, _ = edited(kinds["dp-zo"], public_seed="another")
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any("a value that no real run has" in verdict.reason for verdict in found.verdicts)


def test_numbers_that_a_report_does_not_name_leave_the_weights_open(kinds: Kinds) -> None:
    kind = kinds["dp-zo"]
    data = json.loads(kind.path.read_text())
    data["outputs"] = [artifact for artifact in data["outputs"] if artifact["role"] != "numbers"]
    found, _ = judged(kind, data)
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any("names no file of the numbers" in verdict.reason for verdict in found.verdicts)


@pytest.mark.parametrize(
    ("name", "changed", "word"),
    [
        ("clipped", {"noise_multiplier": 1.0}, "and this training adds no noise"),
        ("clipped", {"epsilon": 1.0}, "and this training has no guarantee"),
        ("clipped", {"delta": 1e-5}, "and this training has no guarantee"),
        ("clipped", {"sample_rate": 0.1}, "sample_rate"),
        ("ferret published", {"epsilon": 0.25}, "parameter epsilon is 0.25, but its guarantee has 0.5"),
        ("dp-sgd", {"max_length": 0}, "parameter max_length is 0, which no training has"),
    ],
)
def test_a_setting_that_promises_more_than_the_training_is_refuted(
    kinds: Kinds, name: str, changed: dict[str, object], word: str
) -> None:
    found, _ = edited(kinds[name], **changed)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts if verdict.subject == "parameters")


@pytest.mark.parametrize("known", ["smoothness", "strong_convexity"])
def test_a_training_knows_nothing_of_its_loss(kinds: Kinds, known: str) -> None:
    """The noise of privctl noise would be calibrated to it."""
    kind = kinds["clipped"]
    data = json.loads(kind.path.read_text())
    data["mechanism"][known] = 1.0
    found, _ = judged(kind, data)
    assert found.exit_code is ExitCode.REFUTED
    assert any(f"mechanism's {known} is 1" in verdict.reason for verdict in found.verdicts)


@pytest.mark.parametrize("name", ["dp-sgd", "dpquant"])
def test_a_number_with_which_nothing_can_be_computed_ends_no_check(kinds: Kinds, name: str) -> None:
    """A batch of negative size has no square root."""
    size = json.loads(kinds[name].path.read_text())["parameters"]["batch_size"]
    found, outcome = edited(kinds[name], batch_size=-size)
    assert found.exit_code is ExitCode.REFUTED
    assert any("a number that no real run has" in verdict.reason for verdict in found.verdicts)
    assert outcome == "fail"
