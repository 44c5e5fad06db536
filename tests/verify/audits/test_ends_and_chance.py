"""Ends of intervals that do not exist, and chance levels of differences, which would hide what comes out of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.evidence import Bound, Evidence
from tests.verify.audits.test_reach import beyond, report
from verify.audits.consistency import faults

ENDS, CHANCE = "it states an end of an interval, and has none", "do not differ by chance"


def of(item: Evidence) -> list[str]:
    return [fault for fault in faults(report(item)) if ENDS in fault or CHANCE in fault]


@pytest.mark.parametrize("bound", [Bound.NONE, Bound.TWO_SIDED])
@pytest.mark.parametrize("ends", [(0.0, None), (None, 0.01), (0.0, 0.01)])
def test_a_figure_that_was_not_measured_has_no_interval(bound: Bound, ends: tuple[float | None, float | None]) -> None:
    item = Evidence(
        method="extraction", quantity="rate on text in 100 or more documents", estimate=None, bound=bound,
        details={"texts": 0, "extracted": 0},
    )  # fmt: skip
    assert of(item) == []
    (fault,) = of(replace(item, lower=ends[0], upper=ends[1]))
    assert fault.endswith(ENDS)


def test_an_upper_limit_may_stand_alone() -> None:
    item = Evidence(method="one run, stated steps", quantity="noise multiplier", estimate=None, bound=Bound.UPPER)
    assert of(replace(item, upper=3.0)) == []


@pytest.mark.parametrize("chance", [1.0, -1.0])
def test_a_difference_is_not_put_down_to_chance(chance: float) -> None:
    """Above a chance of 1 nothing can come out, so that no page or summary would show the leak."""
    item = beyond((30, 40), (0, 40))
    assert of(item) == []
    (fault,) = of(replace(item, details={**item.details, "chance": chance}))
    assert fault.startswith(f"extraction, {item.quantity}: its chance is {chance:g}")
