"""A bound on the noise of stated steps is computed again by verify's accountant, and forged ones do not stand."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.stated_noise import noise_bound, noise_in_words, noise_parameters
from audits.claims import CurveClaim
from audits.mechanism_curve import family_of
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.profile import profile
from privctl.domain.events import Batches, GroupGaussian, Ledger, SampledGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.codec import decode_value
from tests.few import few
from verify.audits.asked import faults as unanswered
from verify.audits.canaries.noise import wrong_noise
from verify.texts.warnings.of_noise import noise_at_most

DELTA = 1e-5
POISSON = SampledGaussian(noise_multiplier=0.776, sample_rate=0.1, steps=42)
KINDS = [
    POISSON,
    SampledGaussian(noise_multiplier=3.891, steps=42),
    SampledGaussian(noise_multiplier=0.707, sample_rate=0.1, steps=42, batches=Batches.BALLS_AND_BINS),
    GroupGaussian(noise_multiplier=1.912, group_size=4, sample_rate=0.1, steps=42),
]


@lru_cache(None)
def audited(event: Any, mu: float = 1.0, *, own: bool = True) -> tuple[PrivacyReport, AuditParameters, Evidence]:
    """An audit of steps whose canaries show as much as Gaussian noise of ``mu`` lets them, seen in two ways."""
    source = np.random.default_rng(7)
    count, ledger = 2001, Ledger(events=(event,))
    coins = source.random(count) < 0.5
    bounds: list[Evidence] = []
    for name in ("every step", "final weights"):
        scores = mu * coins + source.normal(size=count)
        bounds += bounds_of(register([1] * count), scores, np.ones(count, np.bool_), coins, DELTA, 0.025, name=name)
    claim = CurveClaim(
        mechanism=ledger, points=profile(ledger), source="m", family=family_of(ledger, profile, epsilon_bound)
    )
    noise = noise_bound(bounds, claim, DELTA, own_coordinates=own)
    stated = noise_parameters(noise)
    parameters = AuditParameters(
        canary_mechanism=ledger,
        canary_commitment=None if own else "c",
        canary_steps=decode_value(Assumption, stated["canary_steps"], "a report", "steps") if stated else None,
    )
    report = PrivacyReport(step="audit", created="now", versions={}, evidence=(*bounds, *noise))
    return report, parameters, noise[0]


@pytest.mark.parametrize("event", few(KINDS, 0, 1))
def test_what_the_audit_states_is_found_again(event: Any) -> None:
    for own in (True, False):
        report, parameters, noise = audited(event, 1.3, own=own)
        assert list(wrong_noise(report, parameters)) == []
        assert noise.details["independent"] == own


@pytest.mark.parametrize("event", few([POISSON, SampledGaussian(noise_multiplier=1.0, sample_rate=0.3, steps=1)], 0))
def test_trainings_that_show_all_coins_are_found_again(event: Any) -> None:
    """As if a canary was drawn into each step: no noise fits so many right guesses, and what is stated ends there."""
    report, parameters, noise = audited(event, 60.0)
    assert list(wrong_noise(report, parameters)) == []
    assert 90 < noise.details["epsilon"] <= 100
    assert any("less noise is rejected too" in fault for fault in wrong_noise(changed(report, noise, 1.1), parameters))


def changed(report: PrivacyReport, noise: Evidence, share: float = 1.0, **details: float) -> PrivacyReport:
    assert noise.upper is not None
    most = noise.upper * share
    own = {**noise.details, "share": noise.details["share"] * share, **details}
    other = replace(noise, estimate=most, upper=most, details=own)
    return replace(report, evidence=tuple(other if item is noise else item for item in report.evidence))


def test_forged_figures_do_not_stand() -> None:
    report, parameters, noise = audited(POISSON)
    twice = replace(report, evidence=(*report.evidence, noise))
    bolder = replace(noise, confidence=0.99)
    for forged, stated, sentence in (
        (changed(report, noise, 0.95), parameters, "a little more noise is not rejected"),
        (changed(report, noise, 1.05), parameters, "less noise is rejected too"),
        (changed(report, noise, epsilon=noise.details["epsilon"] * 1.03), parameters, "such steps have an epsilon of"),
        (changed(report, noise, stated=1.0), parameters, "do not fit each other"),
        (changed(report, noise, independent=0.0), parameters, "independent of the others in such steps"),
        (changed(report, noise, independent=0.5), parameters, "independent of the others in such steps"),
        (report, replace(parameters, canary_commitment="c"), "not independent of the others in such steps"),
        (report, replace(parameters, canary_steps=None), "does not say on what it rests"),
        (report, replace(parameters, canary_mechanism=None), "no one kind of Gaussian steps"),
        (twice, parameters, "more than once"),
        (
            replace(report, evidence=tuple(bolder if item is noise else item for item in report.evidence)),
            parameters,
            "it holds with 0.99",
        ),
        (
            replace(report, evidence=report.evidence[:-1]),
            parameters,
            "it says on what a bound on the noise rests, and has none",
        ),
    ):
        assert any(sentence in fault for fault in wrong_noise(forged, stated)), sentence
    weaker = Assumption(name="steps as stated", statement="all is well", state=AssumptionState.ENFORCED)
    assert list(wrong_noise(report, replace(parameters, canary_steps=weaker)))


@pytest.mark.parametrize(
    ("why", "sentence"),
    [
        ("the guesses fit any noise up to 64 times what is stated", "the right guesses reject so much noise"),
        ("the accountant gives no epsilon (too large)", "the steps have an epsilon"),
        ("the stated mechanism is no one kind of Gaussian steps", "does not say why"),
        ("at delta 0 Gaussian noise has none", "does not say why"),
    ],
)
def test_a_bound_may_not_be_hidden_behind_a_reason(why: str, sentence: str) -> None:
    report, parameters, noise = audited(POISSON, 1.3)
    hidden = replace(noise, estimate=None, upper=None, details={}, bound=Bound.NONE, reason=f"not bounded: {why}")
    forged = replace(report, evidence=(*report.evidence[:-1], hidden))
    (fault,) = wrong_noise(forged, replace(parameters, canary_steps=None))
    assert sentence in fault


def test_guesses_that_fit_any_noise_leave_no_bound() -> None:
    report, parameters, noise = audited(POISSON, 0.0)
    assert noise.upper is None
    assert "any noise up to 64 times" in noise.reason
    assert list(wrong_noise(report, parameters)) == []
    for other in (
        replace(noise, reason="not bounded: at delta 0 Gaussian noise has none"),
        replace(noise, confidence=0.99),
        replace(noise, samples={"canaries": 7}),
    ):
        assert list(wrong_noise(replace(report, evidence=(*report.evidence[:-1], other)), parameters))


def test_its_sentence_is_required() -> None:
    _, _, noise = audited(POISSON)
    (sentence,) = noise_in_words([noise])
    assert re.fullmatch(noise_at_most(noise), sentence)
    assert re.fullmatch(noise_at_most(None), sentence)
    assert not re.fullmatch(noise_at_most(noise), sentence.replace("at most ", "at most 1", 1))
    assert not re.fullmatch(noise_at_most(None), sentence.replace("of other steps it says nothing; ", ""))


def test_it_may_not_be_left_out() -> None:
    report, parameters, _ = audited(POISSON)
    asked = replace(parameters, asked=AskedAudit(noise=True))
    fault_text = "it was to bound the noise of the stated steps"
    assert not any(fault_text in fault for fault in unanswered(report, asked))
    assert any(fault_text in fault for fault in unanswered(replace(report, evidence=report.evidence[:-1]), asked))
