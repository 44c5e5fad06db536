"""A mechanism is called consistent only by guesses that would have been likely to refute half of its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of, counts_of
from audits.canaries.design import register
from audits.canaries.stated_noise import are_independent
from audits.canaries.verdict import power_at_half_noise
from audits.claims import CurveClaim, curve_subject, with_half_noise
from privctl.accounting.profile import profile
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.canaries.half_noise import unlikely_to_refute

WEAK = SampledGaussian(noise_multiplier=1.5, sample_rate=0.1, steps=40)
STRONG = SampledGaussian(noise_multiplier=0.6, sample_rate=0.2, steps=40)


@pytest.mark.parametrize(
    ("event", "count", "own", "likely"),
    [
        (WEAK, 30, True, False),
        (WEAK, 30, False, False),
        (WEAK, 4000, True, True),
        (WEAK, 4000, False, True),
        (STRONG, 30, True, False),
        (STRONG, 400, True, True),
        (STRONG, 400, False, False),
    ],
)
def test_only_likely_refutations_make_a_mechanism_consistent(event: Any, count: int, own: bool, likely: bool) -> None:
    source, ledger = np.random.default_rng(4), Ledger(events=(event,))
    coins = source.random(count) < 0.5
    bounds = bounds_of(register([1] * count), source.normal(size=count), np.ones(count, np.bool_), coins, 1e-5, 0.05)
    curve = CurveClaim(mechanism=ledger, points=profile(ledger), source="m", half=profile(with_half_noise(ledger)))
    power = power_at_half_noise(list(counts_of(bounds[0])), curve, 0.05, independent=own and are_independent(curve))
    assert (power >= 0.8) is likely

    parameters = AuditParameters(
        canary_mechanism=ledger, canary_curve=tuple(curve.points), canary_commitment=None if own else "blake3:0"
    )
    for outcome in (Outcome.CONSISTENT, Outcome.INCONCLUSIVE):
        verdict = Verdict(subject=curve_subject(curve), outcome=outcome, reason="")
        report = PrivacyReport(step="audit", created="", versions={}, evidence=bounds, verdicts=(verdict,))
        found = list(unlikely_to_refute(report, parameters))
        assert bool(found) is (outcome is Outcome.CONSISTENT and not likely)
