"""Canary gradients are held against the steps, planted records against all that a report states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.codec import encode_value
from privctl.reports.files import read_report
from tests.gate.made import making, weights
from verify.audits.asked import unanswered_claims
from verify.audits.terms import BOUND
from verify.texts.warnings.of_canaries import STEPS_ALONE
from verify.warned.required_of_audits import of_audit

STEPS = SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=40)
MEASURED = SampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=4)
WHOLE, ALONE = Ledger(events=(STEPS, MEASURED)), Ledger(events=(STEPS,))
ANOTHER = Ledger(events=(replace(STEPS, noise_multiplier=0.5),))
CONDITION = Assumption(name="independent coins", statement="x", state=AssumptionState.ASSERTED)


@pytest.fixture
def training(tmp_path: Path) -> PrivacyReport:
    """By steps and measurements."""
    report = read_report(making(tmp_path / "a.report.json", name="a", parameters={"steps_begun": 40}))
    return replace(report, mechanism=WHOLE, guarantees=())


def audit(mechanism: Ledger | None, *, planted: bool) -> PrivacyReport:
    bound: dict[str, Any] = {"samples": {"canaries": 3}, "details": {"delta": 0.0, "copies": 1.0}}
    parameters = {
        "canary_conditions": [encode_value(CONDITION)],
        **({} if mechanism is None else {"canary_mechanism": encode_value(mechanism)}),
        **({"canary_commitment": "c"} if planted else {}),
    }
    return PrivacyReport(
        step="audit", created="2026-01-01T00:00:00Z", versions={}, parameters=parameters,
        inputs=(replace(weights("a"), role="model"),),
        evidence=(Evidence(method=BOUND, quantity="epsilon", estimate=0.0, **bound),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mechanism", "planted", "stands"),
    [
        (ALONE, False, True), (WHOLE, False, False), (ANOTHER, False, False), (None, False, True),
        (WHOLE, True, True), (ALONE, True, False),
    ],
)  # fmt: skip
def test_another_mechanism_is_refuted(
    mechanism: Ledger | None, planted: bool, stands: bool, training: PrivacyReport
) -> None:
    found = list(unanswered_claims(Path("x.json"), audit(mechanism, planted=planted), [training]))
    assert [each.outcome for each in found] == [Outcome.REFUTED] * (not stands)
    assert all("the mechanism that its canaries tested" in verdict.reason for verdict in found)


def test_steps_that_are_not_all_of_a_training_are_not_tested_alone(training: PrivacyReport) -> None:
    longer = replace(training, parameters={**training.parameters, "steps_begun": 44})
    assert not list(unanswered_claims(Path("x.json"), audit(WHOLE, planted=False), [longer]))
    (wrong,) = unanswered_claims(Path("x.json"), audit(ALONE, planted=False), [longer])
    assert wrong.outcome is Outcome.REFUTED


def test_an_audit_says_that_measurements_were_not_tested(training: PrivacyReport) -> None:
    assert STEPS_ALONE in list(of_audit(audit(ALONE, planted=False), [training]))
    without = replace(training, mechanism=ALONE)
    assert STEPS_ALONE not in list(of_audit(audit(ALONE, planted=False), [without]))
    assert STEPS_ALONE not in list(of_audit(audit(WHOLE, planted=True), [training]))
