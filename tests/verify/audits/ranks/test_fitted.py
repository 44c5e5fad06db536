"""The interval of a fitted score's AUC: computed again by other formulas, and forged standard errors are noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from audits.statistics import fitted
from audits.statistics.fitted import interval, widened
from audits.statistics.power import detectable_area_beyond
from privctl.domain.evidence import Evidence
from tests.verify.audits.test_reach import report
from verify.audits.consistency import faults
from verify.audits.ranks.fitted import of_fitted
from verify.audits.reach import detectable_fault
from verify.audits.terms import RELABELLED, STUDENT, WIDENED
from verify.laws.student import student_quantile


@pytest.mark.parametrize("ties", [False, True])
def test_it_is_that_of_the_audit(ties: bool) -> None:
    source, member = np.random.default_rng(3), np.arange(230) < 30
    scores = source.normal(size=230) + np.where(member, np.where(source.random(230) < 0.7, 3, -3), 0)
    scores = np.round(scores) if ties else scores
    stderr = widened(scores, member, 0.07)
    assert stderr > 0.07
    found = of_fitted(scores[member], scores[~member], 0.07, 0.01, WIDENED)
    assert found.details["stderr"] == pytest.approx(stderr)
    assert found.estimate is not None
    assert (found.lower, found.upper) == pytest.approx(interval(found.estimate, stderr, 0.99))
    by_few = of_fitted(scores[member], scores[~member], 0.07, 0.01, STUDENT, relabellings=49)
    assert (by_few.lower, by_few.upper) == pytest.approx(interval(found.estimate, stderr, 0.99, 49))
    former = of_fitted(scores[member], scores[~member], 0.07, 0.01, RELABELLED)
    assert (former.lower, former.upper) == pytest.approx(interval(found.estimate, 0.07, 0.99))


def test_a_forged_standard_error() -> None:
    assert (fitted.WIDENED, fitted.STUDENT) == (WIDENED, STUDENT)
    lower, upper = interval(0.6, 0.05, 0.95)
    item = Evidence(
        method="blind baseline", quantity="AUC", estimate=0.6, lower=lower, upper=upper, confidence=0.95,
        interval=WIDENED, samples={"members": 100, "nonmembers": 100},
        details={"chance": 0.5, "deviation": 0.045, "stderr": 0.05},
    )  # fmt: skip

    def wrong(stated: Evidence) -> list[str]:
        return [fault for fault in faults(report(stated)) if "interval" in fault or "standard error" in fault]

    assert wrong(item) == []
    narrow: dict[str, Any] = dict(zip(("lower", "upper"), interval(0.6, 0.04, 0.95), strict=True))
    for forged in (
        replace(item, **narrow),
        replace(item, **narrow, details={**item.details, "stderr": 0.04}),
        replace(item, details={"chance": 0.5, "deviation": 0.045}),
        replace(item, lower=None),
    ):
        assert wrong(forged) != []


def test_limits_by_another_number_of_relabellings() -> None:
    """Of 200,000 records an audit draws 49."""
    lower, upper = interval(0.5, 1e-3, 0.998, 49)
    item = Evidence(
        method="fused", quantity="AUC", estimate=0.5, lower=lower, upper=upper, confidence=0.998, interval=STUDENT,
        samples={"members": 100_000, "nonmembers": 100_000},
        details={"chance": 0.5, "deviation": 1e-3, "stderr": 1e-3, "relabellings": 49},
    )  # fmt: skip

    def wrong(stated: Evidence) -> list[str]:
        return [fault for fault in faults(report(stated)) if "interval" in fault or "relabellings" in fault]

    assert wrong(item) == []
    narrow: dict[str, Any] = dict(zip(("lower", "upper"), interval(0.5, 1e-3, 0.998, 199), strict=True))
    assert wrong(replace(item, **narrow)) != []
    assert wrong(replace(item, **narrow, details={**item.details, "relabellings": 199})) != []
    assert wrong(replace(item, details={"chance": 0.5, "deviation": 1e-3, "stderr": 1e-3})) != []


@pytest.mark.parametrize("tail", [0.025, 0.001, 1e-6])
@pytest.mark.parametrize("freedom", [1, 2, 3, 48, 198])
def test_student_s_quantile_is_that_of_scipy(tail: float, freedom: int) -> None:
    assert student_quantile(tail, freedom) == pytest.approx(-stdtrit(freedom, tail), rel=1e-7)


def test_a_forged_detectable_area() -> None:
    """0.5 + 1.96 * 0.045 + 0.8416 times Hanley and McNeil's deviation there, 0.0394 for 100 and 100: 0.6214."""
    least = detectable_area_beyond(1.959964, 100, 100, deviation=0.045)
    assert least == pytest.approx(0.6214, abs=1e-4)
    lower, upper = interval(0.6, 0.05, 0.95)
    item = Evidence(
        method="blind baseline", quantity="AUC", estimate=0.6, lower=lower, upper=upper, confidence=0.95,
        interval=WIDENED, samples={"members": 100, "nonmembers": 100},
        details={"chance": 0.5, "deviation": 0.045, "stderr": 0.05, "detectable": least},
    )  # fmt: skip
    assert detectable_fault(item, report(item)) == ""
    for other in (0.611, least - 0.001, least + 0.001, 0.5, 1.0):
        assert detectable_fault(replace(item, details={**item.details, "detectable": other}), report(item)) != ""
