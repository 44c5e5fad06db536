"""A claim of single records that no guesses on single records test is neither consistent nor refuted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.verdict import claims
from audits.claims import EpsilonClaim
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from tests.verify.audits.test_reach import report
from verify.audits.canaries.claims import wrong_claims


def audited(*items: Evidence) -> PrivacyReport:
    """An audit that was asked about a claim."""
    return replace(
        report(*items), verdicts=tuple(claims(items, [EpsilonClaim(epsilon=1, delta=1e-5, source="as claimed")]))
    )


def bounds(copies: int, count: int) -> tuple[Evidence, ...]:
    coins = np.random.default_rng(0).random(count) < 0.5
    scores = np.random.default_rng(1).normal(size=count)
    return bounds_of(register([copies] * count), scores, np.ones(count, np.bool_), coins, 1e-5, 0.05)


def stating(audit: PrivacyReport, outcome: Outcome) -> list[str]:
    return list(wrong_claims(replace(audit, verdicts=tuple(replace(each, outcome=outcome) for each in audit.verdicts))))


@pytest.mark.parametrize("items", [bounds(2, 200), ()], ids=["two copies", "nothing"])
def test_nothing_tests_it(items: tuple[Evidence, ...]) -> None:
    audit = audited(*items)
    (verdict,) = audit.verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert list(wrong_claims(audit)) == []
    for outcome in (Outcome.CONSISTENT, Outcome.PROVED, Outcome.REFUTED):
        (fault,) = stating(audit, outcome)
        assert fault.endswith(f"is {outcome}, but nothing that it measured tests that")


def test_guesses_on_single_records_test_it() -> None:
    audit = audited(*bounds(1, 2000))
    assert list(wrong_claims(audit)) == []
    assert not any("nothing that it measured" in fault for fault in stating(audit, Outcome.CONSISTENT))


@pytest.mark.parametrize("method", ["rank test", "fixed threshold"])
def test_claims_tested_by_many_models_are_checked_elsewhere(method: str) -> None:
    audit = audited(Evidence(method=method, quantity="lower bound on epsilon", estimate=None, reason="too few"))
    assert stating(audit, Outcome.CONSISTENT) == []
