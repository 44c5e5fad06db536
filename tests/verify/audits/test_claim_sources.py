"""Verdicts on claims name who makes them, and the mechanism that was tested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audits.claims import CurveClaim, claims_of, curve_subject, subject_of
from privctl.domain.event import Event
from privctl.domain.events import (
    BandedGaussian,
    BestOfRuns,
    BufferedGaussian,
    GroupGaussian,
    LaplaceNoise,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.guarantee import Status
from privctl.domain.report import ParentReport, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from tests.gate.made import PROVED
from verify.audits.claim_sources import faults, misattributed

FILE = "model.report.json"
(OWN,) = claims_of([PROVED], FILE)


def audit(*subjects: str) -> PrivacyReport:
    verdicts = tuple(Verdict(subject=each, outcome=Outcome.INCONCLUSIVE, reason="") for each in subjects)
    parent = ParentReport(path=f"folder/{FILE}", digest="blake3:" + "1" * 64)
    return PrivacyReport(
        step="audit", created="2030-01-01T00:00:00Z", versions={}, parents=(parent,), verdicts=verdicts
    )


def found(*subjects: str, ledger: Ledger | None = None) -> list[str]:
    report, maker = audit(*subjects), replace(audit(), step="retrain", guarantees=(PROVED,))
    assert list(misattributed(report, ())) == []
    parameters = AuditParameters(canary_mechanism=ledger)
    return [*faults(report, parameters), *misattributed(report, [maker])]


def test_claims_that_are_made_pass() -> None:
    own, start = subject_of(OWN), f"({OWN.epsilon:g}, {OWN.delta:g})-DP"
    assert found("(1, 1e-05)-DP, as claimed", own, "(prior, posterior)-secret protection, as planned in p") == []
    assert found(f"(9, 1e-05)-DP, of 3 examples together by {start}, {OWN.source}") == []
    assert found(f"{start} for values of 'a, b', {OWN.source}", f"{start} for values of 'x', as claimed") == []


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("(1, 1e-05)-DP", "does not say whose claim"),
        ("(1, 1e-05)-DP, as claimed by nobody", "does not say whose claim"),
        (f"(1, 1e-05)-DP, {OWN.source} and more", "does not say whose claim"),
        (f"(1, 1e-05)-DP, {OWN.source.replace(FILE, 'other.report.json')}", "does not build on"),
        (f"(1, 1e-05)-DP, {OWN.source.replace('proved', 'refuted')}", "does not make so"),
        (f"(1, 1e-05)-DP, {OWN.source.replace(str(PROVED.adjacency), 'replace-one')}", "does not make so"),
        (f"(1, 1e-05)-DP, {OWN.source.replace('(' + PROVED.name, '(dp-sgd again')}", "does not make so"),
    ],
)
def test_other_sources_are_noticed(subject: str, says: str) -> None:
    assert PROVED.status is Status.PROVED
    (fault,) = found(subject)
    assert says in fault


EVENTS: tuple[Event, ...] = (
    SampledGaussian(noise_multiplier=1.23456789, sample_rate=0.0123456789, steps=7),
    GroupGaussian(noise_multiplier=1.5, sample_rate=0.1, steps=7, group_size=3),
    TruncatedGaussian(noise_multiplier=1.5, sample_rate=0.1, steps=7, examples=60, largest_batch=16),
    BandedGaussian(noise_multiplier=1.5, coefficients=(1.0, 0.5), steps=8),
    BufferedGaussian(noise_multiplier=1.5, first=1.0, weights=(0.5, 0.1), decays=(0.9, 0.5), steps=8),
    BestOfRuns(noise_multiplier=1.5, sample_rate=0.1, run_steps=9, mean_runs=2.5, shape=1.0, steps=1),
    LaplaceNoise(scale=3.0, steps=2),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.tag)
def test_the_mechanism_is_the_one_that_was_tested(event: Event) -> None:
    ledger = Ledger(events=(event, EVENTS[0]))
    subject = curve_subject(CurveClaim(mechanism=ledger, points=(), source=FILE))
    assert found(subject, ledger=ledger) == found(subject) == []
    (fault,) = found(
        subject.replace(f"{event.steps} steps", "1000 steps", 1).replace("9 steps", "90 steps"), ledger=ledger
    )
    assert "is on another mechanism than it tested" in fault
    (fault,) = found(subject.replace(FILE, "other.report.json"), ledger=ledger)
    assert "does not build on" in fault
