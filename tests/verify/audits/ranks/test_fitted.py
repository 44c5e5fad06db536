"""The interval of a fitted score's AUC: computed again by other formulas, and forged standard errors are noticed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from audits.statistics import fitted
from audits.statistics.fitted import NullLaw, interval, widened
from audits.statistics.power import detectable_area_beyond
from privctl.domain.evidence import Evidence
from tests.verify.audits.test_reach import report
from verify.audits.consistency import faults
from verify.audits.ranks.fitted import moments, of_fitted
from verify.audits.ranks.limits import reaches
from verify.audits.reach import detectable_fault
from verify.audits.terms import RELABELLED, WIDENED
from verify.laws.student import student_quantile

LAW = NullLaw(chance=0.5, center=0.49, deviation=0.045, skewness=-0.4, relabellings=999)


@pytest.mark.parametrize("ties", [False, True])
def test_it_is_that_of_the_audit(ties: bool) -> None:
    source, member = np.random.default_rng(3), np.arange(230) < 30
    scores = source.normal(size=230) + np.where(member, np.where(source.random(230) < 0.7, 3, -3), 0)
    scores = np.round(scores) if ties else scores
    values = 0.5 + 0.07 * source.gumbel(size=99)
    law = NullLaw.of(values, 0.5, 0.9)
    assert moments(values, 0.5, 0.9) == pytest.approx(law.details)
    stderr = widened(scores, member, law.deviation)
    assert stderr > law.deviation
    found = of_fitted(scores[member], scores[~member], law.details, 0.01)
    assert found.details == pytest.approx({**law.details, "stderr": stderr})
    assert found.estimate is not None
    assert (found.lower, found.upper) == pytest.approx(interval(found.estimate, stderr, 0.99, law))


@pytest.mark.parametrize("skewness", [-1.5, -0.3, -math.sqrt(6 / 999), 0.0, 0.4])
@pytest.mark.parametrize("count", [2, 99, 999, 1999])
def test_limits_are_those_of_the_audit(skewness: float, count: int) -> None:
    for tail in (0.025, 1e-3, 1e-6):
        law = replace(LAW, skewness=skewness, relabellings=count)
        assert reaches(law.details, tail) == pytest.approx(law.reaches(tail), rel=1e-5)


def test_a_forged_standard_error() -> None:
    assert (fitted.WIDENED, fitted.RELABELLED) == (WIDENED, RELABELLED)
    lower, upper = interval(0.6, 0.05, 0.95, LAW)
    item = Evidence(
        method="blind baseline", quantity="AUC", estimate=0.6, lower=lower, upper=upper, confidence=0.95,
        interval=WIDENED, samples={"members": 100, "nonmembers": 100}, details={**LAW.details, "stderr": 0.05},
    )  # fmt: skip

    def wrong(stated: Evidence) -> list[str]:
        return [fault for fault in faults(report(stated)) if "interval" in fault or "standard error" in fault]

    assert wrong(item) == []
    narrow: dict[str, Any] = dict(zip(("lower", "upper"), interval(0.6, 0.046, 0.95, LAW), strict=True))
    for forged in (
        replace(item, **narrow),
        replace(item, **narrow, details={**item.details, "stderr": 0.04}),
        replace(item, details={name: value for name, value in item.details.items() if name != "stderr"}),
        replace(item, lower=None),
    ):
        assert wrong(forged) != []
    for name in LAW.details:
        assert wrong(replace(item, details={key: value for key, value in item.details.items() if key != name})) != []


@pytest.mark.parametrize(
    ("changed", "noticed"),
    [
        ({}, False),
        ({"skewness": -0.1}, True),
        ({"center": 0.5}, True),
        ({"relabellings": 999}, True),
        ({"deviation": 2e-3}, True),
    ],
)
def test_other_moments_than_those_of_the_limits(changed: dict[str, float], noticed: bool) -> None:
    """Of 200,000 records as of 200, an audit draws 1999 for the fused score."""
    law = replace(LAW, deviation=1e-3, relabellings=1999)
    lower, upper = interval(0.5, 1e-3, 0.998, law)
    item = Evidence(
        method="fused", quantity="AUC", estimate=0.5, lower=lower, upper=upper, confidence=0.998, interval=WIDENED,
        samples={"members": 100_000, "nonmembers": 100_000}, details={**law.details, "stderr": 1e-3, **changed},
    )  # fmt: skip
    found = [fault for fault in faults(report(item)) if any(of in fault for of in ("interval", "relab"))]
    assert bool(found) is noticed


@pytest.mark.parametrize("tail", [0.025, 0.001, 1e-6])
@pytest.mark.parametrize("freedom", [1, 2, 3, 48, 198])
def test_student_s_quantile_is_that_of_scipy(tail: float, freedom: int) -> None:
    assert student_quantile(tail, freedom) == pytest.approx(-stdtrit(freedom, tail), rel=1e-7)


def test_a_forged_detectable_area() -> None:
    """0.5 + 2.00 * 0.045 + 0.8416 times Hanley and McNeil's deviation there, 0.0394 for 100 and 100: 0.6228."""
    law = replace(LAW, relabellings=99, skewness=0.0)
    least = detectable_area_beyond(law.reaches(0.025)[0], 100, 100, deviation=0.045)
    assert least == pytest.approx(0.6228, abs=2e-3)
    lower, upper = interval(0.6, 0.05, 0.95, law)
    item = Evidence(
        method="blind baseline", quantity="AUC", estimate=0.6, lower=lower, upper=upper, confidence=0.95,
        interval=WIDENED, samples={"members": 100, "nonmembers": 100},
        details={**law.details, "stderr": 0.05, "detectable": least},
    )  # fmt: skip
    assert detectable_fault(item, report(item)) == ""
    for other in (0.611, least - 0.001, least + 0.001, 0.5, 1.0):
        assert detectable_fault(replace(item, details={**item.details, "detectable": other}), report(item)) != ""
