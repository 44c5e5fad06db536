"""Bounds from canaries of which exactly half are included: a gate accepts those that hold for a fixed number too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from audits.canaries.conditions import number_included
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.gate.checks.leakage import why_not_planted
from privctl.reports.codec import encode_value

PLANTED = Assumption(name="trained on the planted data", statement="it was", state=AssumptionState.CHECKED)


#: As audits stated it before their bounds held for a fixed number.
BEFORE = Assumption(
    name="number included",
    statement="exactly 125 of 250 canaries are included, each by a coin of its own: a draw of a fixed number gives "
    "that too, and for it the bounds have no proof; an odd number of canaries rules it out",
    state=AssumptionState.ASSERTED,
)


@pytest.mark.parametrize(
    ("number", "accepted"),
    [
        *((number_included(included, 250), included != 200) for included in (124, 125, 126, 200)),
        (BEFORE, False),
    ],
)
def test_exactly_half_is_accepted_if_the_bounds_allow_for_it(number: Assumption, accepted: bool) -> None:
    conditions = [encode_value(each) for each in (PLANTED, number)]
    report = PrivacyReport(
        step="audit", created="2026-01-01T00:00:00Z", versions={}, parameters={"canary_conditions": conditions}
    )
    loaded: Any = SimpleNamespace(report=report)
    assert (why_not_planted(loaded) == "") is accepted
    assert ("have no proof" in why_not_planted(loaded)) is (number == BEFORE)
