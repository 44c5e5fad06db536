"""The deviations of a blind baseline and of differences from it: larger ones than there can be are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.evidence import Evidence
from verify.audits.joint_test import baseline_faults as faults

SIDES = {"members": 200, "nonmembers": 200}
#: Of a fixed score with 200 records on either side.
FIXED = 0.0289


def item(method: str, quantity: str, estimate: float, **details: float) -> Evidence:
    return Evidence(method=method, quantity=quantity, estimate=estimate, samples=SIDES, details=details)


def stated(deviation: float, *, method: str = "loss", blind: float = FIXED, area: float = 0.9) -> list[Evidence]:
    return [
        item("blind baseline", "AUC", 0.52, deviation=blind),
        item(method, "AUC", area),
        item(method, "AUC over the blind baseline's", area - 0.52, deviation=deviation),
    ]


@pytest.mark.parametrize(
    ("evidence", "right"),
    [
        (stated(FIXED), True),
        (stated(2 * FIXED), True),
        (stated(4 * FIXED), False),
        (stated(3 * FIXED, method="fused"), True),
        (stated(6 * FIXED, method="fused"), False),
        # DeLong's deviation is larger than that of ranks where an AUC of 1/2 comes from scores of 0 and 1.
        (stated(0.09, area=0.5), True),
        (stated(0.13, area=0.5), False),
        (stated(FIXED, blind=4 * FIXED), False),
    ],
)
def test_a_deviation_that_cannot_be(evidence: list[Evidence], right: bool) -> None:
    assert (list(faults(evidence)) == []) is right


def test_without_a_baseline_nothing_is_compared() -> None:
    assert list(faults(stated(9.0)[1:])) == []
    few = [replace(each, samples={"members": 1, "nonmembers": 3}) for each in stated(9.0)]
    assert list(faults(few)) == []
