"""Bounds from canaries, recomputed by sums of all terms: those of the audit stand, changed ones do not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from privctl.domain.evidence import Bound, Evidence
from verify.audits.canaries.bound_forms import _misstated
from verify.audits.canaries.bounds import curve_rejected, wrong_bound


def found(count: int, mu: float) -> tuple[Evidence, Evidence]:
    source = np.random.default_rng(1)
    coins = source.random(count) < 0.5
    scores = mu * coins + source.normal(size=count)
    return bounds_of(register([1] * count), scores, np.ones(count, np.bool_), coins, 1e-5, 0.025)


@pytest.mark.parametrize(("count", "mu"), [(30, 0.0), (250, 1.0), (1001, 3.0), (4000, 0.5)])
def test_only_the_audit_s_own_bound_stands(count: int, mu: float) -> None:
    for item in found(count, mu):
        assert item.lower is not None
        assert wrong_bound(item) == ""
        assert "is not what" in wrong_bound(replace(item, lower=item.lower + 0.001))
        assert item.lower == 0 or "is not what" in wrong_bound(replace(item, lower=item.lower * 0.999))
        fewer = {**item.details, "correct 4": item.details.get("correct 4", 1) - 1000}
        assert "none that can be" in wrong_bound(replace(item, details={**fewer, "correct 1": -1}))
        if item.lower > 0:
            assert wrong_bound(replace(item, confidence=item.confidence - 0.02)), "another share of the confidence"


@pytest.mark.parametrize(("count", "mu"), [(30, 0.0), (250, 1.0), (1001, 3.0)])
def test_a_bound_is_of_the_guesses_that_give_it(count: int, mu: float) -> None:
    for item in found(count, mu):
        others = {int(item.details[f"guesses {i + 1}"]) for i in range(int(item.details["sets"]))} | {count + 1}
        for other in others - {item.samples["guesses"]}:
            changed = replace(item, samples={**item.samples, "guesses": other})
            assert wrong_bound(changed).startswith(f"its {other} guesses do not give it")


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_what_a_bound_on_a_group_says_of_one_record(delta: float) -> None:
    """At delta 0, adding a group of four costs at most four times as much as adding one record."""
    sets = register([4] * 200)
    coins = np.random.default_rng(0).random(200) < 0.5
    scores = coins * 2.0 + np.random.default_rng(1).normal(size=200)
    item = bounds_of(sets, scores, np.ones(200, np.bool_), coins, delta, 0.05)[0]
    one = item.details["epsilon_of_one_record_at_delta_0"]
    assert one > 0
    assert wrong_bound(item) == ""
    for other in (0.0, 0.99 * one, 1.01 * one, -one, math.inf):
        changed = replace(item, details={**item.details, "epsilon_of_one_record_at_delta_0": other})
        assert wrong_bound(changed).startswith("its epsilon_of_one_record_at_delta_0 is")
    without = {name: value for name, value in item.details.items() if not name.startswith("epsilon_of_one")}
    assert wrong_bound(replace(item, details=without)).startswith("it is of groups of 4, and lacks")


def test_a_report_from_before_there_were_several_sets() -> None:
    """The published bound of 95 right of 100 guesses on 1,000 canaries."""
    old = Evidence(
        method="one run, Steinke 2023", quantity="epsilon", estimate=2.165176, lower=2.165176, bound=Bound.LOWER,
        confidence=0.95, samples={"canaries": 1000, "guesses": 100},
        details={"delta": 1e-5, "correct": 95, "copies": 1},
    )  # fmt: skip
    assert wrong_bound(old) == ""
    assert wrong_bound(replace(old, lower=2.2))
    mu = replace(old, method="one run, Mahloujifar 2024", lower=0.786812)
    assert wrong_bound(mu) == ""
    assert wrong_bound(replace(mu, lower=0.79))
    assert wrong_bound(replace(old, method="loss")) == wrong_bound(replace(old, lower=None)) == ""


def test_a_curve_is_judged_from_the_counts() -> None:
    """(1, 1e-5)-DP is one point of a curve, refuted by all right; (0, 1) holds for everything."""
    strong, _ = found(1001, 9.0)
    assert curve_rejected(strong, [(1.0, 1e-5)])
    assert not curve_rejected(strong, [(0.0, 1.0)])


def test_a_bound_on_groups_stands_beside_its_ceiling() -> None:
    """With all guesses right, the bound on one record would be another."""
    coins = np.random.default_rng(0).random(60) < 0.5
    items = bounds_of(
        register([2] * 60), np.random.default_rng(1).normal(size=60), np.ones(60, np.bool_), coins, 1e-5, 0.05
    )
    assert all(item.lower is not None and item.details["copies"] == 2 for item in items)
    assert [fault for item in items if (fault := _misstated(item))] == []
