"""Settings of an audit of secrets: what its request, its figures, its plan or its own limits contradict is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from audits.secrets.audit import SecretRequest, SecretsAudit
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from tests.verify.audits.test_reach import report
from tests.verify.audits.test_secret_figures import COMPLETION, RECONSTRUCTION, rate
from verify.audits.secrets.settings import audited_plan_disagreements, faults

FOUND = "found in 10 queries with probability 0.5, trained"
RATES = (
    rate(RECONSTRUCTION, "told first, trained", 7, 7, 40, told=7, median_candidates=98.5),
    rate(RECONSTRUCTION, "told first, never drawn (control)", 1, 1, 9, told=1, median_candidates=100.0),
    rate(COMPLETION, FOUND, 40, 40, 40, queries=10, probability=0.5),
)


def settings(**changed: Any) -> dict[str, Any]:
    """As an audit states them, whose sentences are taken from the audit itself."""
    numbers = {"candidates": 100, "most_secrets": 40, "beam": 20, "eligible": 60, "data_records": 90, "queries": 10}
    sentences = {name: value for name, value in _written().items() if isinstance(value, str)}
    return {**numbers, "probability": 0.5, "seed": 0, **sentences, **changed}


def _written() -> dict[str, Any]:
    audit = SecretsAudit.__new__(SecretsAudit)
    audit._request = SecretRequest(secrets=None, data=None)  # type: ignore[arg-type]
    audit._targets, audit._plan = type("Targets", (), {"eligible": 1, "records": 1})(), None
    return audit._parameters()


def of(stated: dict[str, Any], *, beam: int | None = 20) -> list[str]:
    return list(faults(report(*RATES), AuditParameters(secrets=stated, asked=AskedAudit(beam=beam))))


def test_genuine_settings_stand() -> None:
    assert of(settings()) == []
    without = settings()
    del without["beam"]
    assert of(without, beam=None) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"candidates": 98}, "were ranked among 98.5 values, and the settings say 98 at most"),
        ({"candidates": -100}, "candidates of the attack on secrets is -100"),
        ({"candidates": 10**6}, "candidates of the attack on secrets is 1000000"),
        ({"most_secrets": 39}, "attacked 40 secrets, and its settings say that there were 39"),
        ({"eligible": 48}, "attacked 49 secrets, and its settings say that there were 48 that could be"),
        ({"data_records": -1}, "data_records of the attack on secrets is -1"),
        ({"queries": 1000}, "the settings say 1000 queries and probability 0.5"),
        ({"probability": 0.9}, "the settings say 10 queries and probability 0.9"),
        ({"probability": 1.5}, "probability of the attack on secrets is 1.5"),
        ({"beam": 200}, "its beam for secrets is 200, but its request has 20"),
        ({"rank": "ties count for the attack"}, "rank of the attack on secrets is ties count for the attack"),
        ({"made_candidates": "the true value alone"}, "made_candidates of the attack on secrets is the true value"),
        ({"tokens": None}, "tokens of the attack on secrets is None"),
    ],
)
def test_a_setting_that_was_changed(changed: dict[str, Any], word: str) -> None:
    assert any(word in fault for fault in of(settings(**changed)))


@pytest.mark.parametrize("name", ["candidates", "most_secrets", "beam", "eligible", "queries", "probability", "rank"])
def test_a_setting_that_was_left_out(name: str) -> None:
    left = settings()
    del left[name]
    assert of(left)


@pytest.mark.parametrize(("name", "other"), [("steps", 4), ("noise_multiplier", 2.0), ("steps", None)])
def test_a_plan_is_tested_as_it_was_made(name: str, other: float | None) -> None:
    facts = {"steps": 8, "noise_multiplier": 0.5}

    def audit(**changed: Any) -> PrivacyReport:
        return replace(report(), parameters={"secrets": settings(**{**facts, **changed})})

    assert list(audited_plan_disagreements(audit(), facts)) == []
    (fault,) = audited_plan_disagreements(audit(**{name: other}), facts)
    assert fault.endswith(f"but the plan that it names has {facts[name]:g}")
