"""Figures of an audit of secrets: what their counts do not give is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from audits.secrets.evidence import _Rate, _with_interval
from audits.secrets.planned_bound import markov_test
from privctl.domain.evidence import Bound, Evidence
from tests.verify.audits.test_reach import report
from verify.audits.secrets.figures import faults

RECONSTRUCTION, COMPLETION = "secret reconstruction", "secret completion"


def rate(method: str, quantity: str, sure: int, most: int, total: int, **details: float) -> Evidence:
    made = _Rate(method=method, quantity=quantity, sure=sure, most=most, total=total, details=details)
    return _with_interval(made, 0.01)


RATES = (
    rate(RECONSTRUCTION, "told first, trained", 7, 7, 40, told=7, chance=0.01),
    rate(RECONSTRUCTION, "told first, held out (control)", 1, 1, 9, told=1),
    rate(RECONSTRUCTION, "told first, kind pin", 7, 7, 30, told=7, control=9, control_told=1),
    rate(RECONSTRUCTION, "told first, kind name", 0, 0, 10, told=0),
    rate(COMPLETION, "written greedily, trained", 5, 6, 40, disclosed=5, undecided=1),
    rate(COMPLETION, "found in 10 queries with probability 0.5, trained", 40, 40, 40, queries=10, probability=0.5),
    rate(COMPLETION, "in a beam of 20, trained", 3, 3, 40, found=3, width=20),
)


def plan(recovered: int) -> Evidence:
    test = markov_test(recovered, [0.02] * 50, 0.025)
    return Evidence(
        method="secret protection", quantity="secrets told against the plan", estimate=recovered / 50, bound=Bound.NONE,
        confidence=0.975, interval="Markov's inequality, whatever the dependence", samples={"secrets": 50},
        details={
            "told": recovered, "allowed_on_average": test.expected, "p_value": test.p_value, "level": 0.025,
            "needed": test.needed, "detected": float(test.p_value <= 0.025), "chance": test.expected / 50,
            "detectable": test.needed / 50,
        },
    )  # fmt: skip


def of(*items: Evidence) -> list[str]:
    return list(faults(report(*items)))


@pytest.mark.parametrize("recovered", [0, 3, 50])
def test_genuine_figures_stand(recovered: int) -> None:
    assert of(*RATES, plan(recovered)) == []


@pytest.mark.parametrize("number", range(len(RATES)))
@pytest.mark.parametrize("changed", [{"estimate": 0.31}, {"lower": 0.001}, {"upper": 0.9}, {"confidence": 0.9}])
def test_a_rate_that_was_changed(number: int, changed: dict[str, float]) -> None:
    item = RATES[number]
    if (next(iter(changed)) == "upper" and item.upper == 1) or (next(iter(changed)) == "lower" and item.lower == 0):
        changed = dict.fromkeys(changed, 0.5)
    found = of(*RATES[:number], replace(item, **changed), *RATES[number + 1 :])  # type: ignore[arg-type]
    assert any(fault.startswith(f"{item.method}, {item.quantity}: ") for fault in found)


@pytest.mark.parametrize("number", range(len(RATES)))
@pytest.mark.parametrize("bound", [Bound.LOWER, Bound.UPPER, Bound.NONE])
def test_a_rate_of_which_one_end_would_not_be_shown(number: int, bound: Bound) -> None:
    item = RATES[number]
    found = of(*RATES[:number], replace(item, bound=bound), *RATES[number + 1 :])
    assert found == [f"{item.method}, {item.quantity}: it is no rate of secrets as audits state them"]


@pytest.mark.parametrize("skipped", [-1.0, 0.5])
def test_secrets_that_were_skipped_are_counted(skipped: float) -> None:
    item = replace(RATES[3], details={**RATES[3].details, "skipped": skipped})
    (fault,) = of(*RATES[:3], item, *RATES[4:])
    assert fault.endswith(f"it says that it skipped {skipped:g} secrets")


@pytest.mark.parametrize("changed", [{"lower": 0.0}, {"upper": 0.01}, {"bound": Bound.UPPER}])
def test_a_test_of_a_plan_has_no_interval(changed: dict[str, Any]) -> None:
    (fault,) = of(replace(plan(50), **changed))
    assert fault.endswith("its counts are none that can be")


@pytest.mark.parametrize(
    "name", ["told", "allowed_on_average", "p_value", "needed", "detected", "chance", "detectable"]
)
def test_a_test_of_a_plan_that_was_changed(name: str) -> None:
    item = plan(50)
    (fault,) = of(replace(item, details={**item.details, name: 0.5 * item.details[name]}))
    assert fault.startswith("secret protection, secrets told against the plan: its ")


@pytest.mark.parametrize(
    ("number", "word"), [(2, "7 secrets told first"), (3, "40 secrets"), (1, "9 controls"), (0, "0 in all")]
)
def test_kinds_add_up(number: int, word: str) -> None:
    left = [item for i, item in enumerate(RATES) if i != number]
    assert any("by kinds it counts" in fault for fault in of(*left))
    assert any(word.split()[-1] in fault for fault in of(*left))


@pytest.mark.parametrize("number", range(len(RATES)))
@pytest.mark.parametrize("name", ["before_told", "bound", "detectable", "seen"])
def test_an_entry_that_was_not_measured(number: int, name: str) -> None:
    item = RATES[number]
    changed = replace(item, details={**item.details, name: 0})
    assert any(f"it states {name!r}, which was not measured" in fault for fault in of(changed))
