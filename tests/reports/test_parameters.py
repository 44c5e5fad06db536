"""Parameters as typed values: what is missing, unknown or of another type is one sentence."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.files import read_report
from privctl.reports.parameters import (
    ExternalTrainingParameters,
    NoiseParameters,
    ParametersError,
    ProtectionParameters,
    ScanParameters,
    TrainingParameters,
    parameters_as,
    unknown_entries,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "report-1.json"
TEST = {"records": 4, "tokens": 9, "padded_to": None, "differences": {"float32": 1e-7}, "allowed": {"float32": 1e-4}}


def report(step: str = "retrain", **parameters: Any) -> PrivacyReport:
    return PrivacyReport(step=step, created="2030-01-01T00:00:00Z", versions={}, parameters=parameters)


def test_entries_become_fields_and_what_is_not_said_is_none() -> None:
    entries = report(method="dp-sgd", examples=60, batch_size=12, trained=["a*"], contribution_test=TEST, volume=11)
    parameters = parameters_as(TrainingParameters, entries)
    assert (parameters.method, parameters.examples, parameters.batch_size, parameters.trained) == (
        "dp-sgd",
        60,
        12.0,
        ("a*",),
    )
    assert parameters.contribution_test is not None
    assert parameters.contribution_test.allowed == {"float32": 1e-4}
    assert parameters.delta is None
    assert unknown_entries(TrainingParameters, entries) == ["volume"]
    with pytest.raises(FrozenInstanceError):
        parameters.examples = 61  # type: ignore[misc]


def test_reading_twice_is_reading_once() -> None:
    entries = report(examples=60)
    assert parameters_as(TrainingParameters, entries) is parameters_as(TrainingParameters, entries)
    assert parameters_as(TrainingParameters, replace(entries, parameters={"examples": 61})).examples == 61


@pytest.mark.parametrize(
    ("kind", "parameters", "sentence"),
    [
        (TrainingParameters, {"examples": "60"}, r"parameters\.examples is '60'; expected a whole number"),
        (TrainingParameters, {"examples": True}, r"parameters\.examples is True; expected a whole number"),
        (TrainingParameters, {"delta": "small"}, r"parameters\.delta is 'small'; expected a finite number"),
        (TrainingParameters, {"delta": 10**400}, r"parameters\.delta is 10*\.\.\.; expected a finite number"),
        (TrainingParameters, {"trained": "a*"}, r"parameters\.trained is 'a\*'; expected a list"),
        (TrainingParameters, {"contribution_test": "passed"}, r"contribution_test is 'passed'; expected an object"),
        (TrainingParameters, {"contribution_test": {**TEST, "x": 1}}, r"contribution_test has the unknown key 'x'"),
        (TrainingParameters, {"plan": {"form": "pairwise"}}, r"parameters\.plan lacks the key 'digest'"),
        (TrainingParameters, {"history": [{"step": "first"}]}, r"history\[0\]\.step is 'first'"),
        (NoiseParameters, {"tensors_tied": [["a", 1]]}, r"tensors_tied\[0\]\[1\] is 1; expected a string"),
        (
            ExternalTrainingParameters,
            {"program": "opacus", "accountant_history": [[1, 0.1]]},
            r"y\[0\] is \[1, 0\.1\]; expected a list of 3",
        ),
        (
            ExternalTrainingParameters,
            {"program": "opacus", "accountant_history": [[1, 2, "3"]]},
            r"y\[0\]\[2\] is '3'; expected a whole",
        ),
        (ProtectionParameters, {"targets": {"email": [0.1]}}, r"targets of 'email' are 1 numbers; expected a prior"),
        (ScanParameters, {"dataset_size": 3}, r"parameters lacks the key 'found'"),
        (AuditParameters, {"canary_conditions": [{"name": "a", "statement": "b", "state": "so"}]}, r"state is 'so'"),
        (AuditParameters, {"canary_curve": [[1, 2, 3]]}, r"curve\[0\] is \[1, 2, 3\]; expected a list of 2"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(kind: type, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParametersError, match=f"^the retrain report: .*{sentence}") as fault:
        parameters_as(kind, report(**parameters))
    assert "\n" not in str(fault.value)


def test_a_required_entry_is_missed_in_a_kind_that_narrows_an_optional_one() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Strict(TrainingParameters):
        examples: int

    with pytest.raises(ParametersError, match="lacks the key 'examples'"):
        parameters_as(Strict, report(method="dp-sgd"))


def test_old_reports_stay_readable() -> None:
    """Reports that know fewer entries, or hold some that are no longer written."""
    old = parameters_as(NoiseParameters, read_report(GOLDEN))
    assert (old.epsilon, old.exclude, old.tensors_tied) == (1.0, ("a*", "b"), None)
    assert unknown_entries(NoiseParameters, read_report(GOLDEN)) == sorted(
        json.loads(GOLDEN.read_text())["parameters"].keys() - {"epsilon", "exclude"}
    )
    for kind in (TrainingParameters, ProtectionParameters, AuditParameters, NoiseParameters):
        parameters_as(kind, report())
