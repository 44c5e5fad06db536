"""Bounds that would be passed over: by another name, without an entry, or said to bound nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from tests.verify.audits.canaries.test_bounds import found
from verify.audits.canaries.bound_forms import misstated_bounds
from verify.audits.canaries.claims import wrong_claims

COUNT = 60
#: A split whose attack ``loss`` judges all records, and planted canaries.
SPLIT = AuditParameters(attack=("loss",), split_commitment="blake3:0", split_records=COUNT)
PLANTED = AuditParameters(canary_commitment="blake3:0")
VIOLATED = Assumption(name="commitment", statement="it is another", state=AssumptionState.VIOLATED)
BROKEN = replace(PLANTED, canary_conditions=(VIOLATED,))
ELSEWHERE = "not a bound: the model's report names other training data than train.jsonl of the split"
MISSING = "not a bound: 3 records of the split have no score, and which ones may depend on the coins"


def drawn(*, reason: str = "", name: str = "loss") -> list[Evidence]:
    source = np.random.default_rng(2)
    coins = source.random(COUNT) < 0.5
    scores = source.normal(size=COUNT) + 3 * coins
    everything = np.ones(COUNT, np.bool_)
    found = bounds_of(register([1] * COUNT), scores, everything, coins, 1e-5, 0.01, reason=reason, name=name)
    sides = {"members": int(coins.sum()), "nonmembers": COUNT - int(coins.sum())}
    area = Evidence(method="loss", quantity="AUC", estimate=0.9, samples=sides)
    return [area, *found]


def of(parameters: AuditParameters, *evidence: Evidence) -> list[str]:
    return list(misstated_bounds(PrivacyReport(step="audit", created="", versions={}, evidence=evidence), parameters))


def test_no_bound_has_an_interval() -> None:
    for item in found(250, 1.0):
        assert any("no such bound has one" in fault for fault in of(PLANTED, replace(item, interval="Clopper-Pearson")))


def test_genuine_bounds_stand() -> None:
    assert of(SPLIT, *drawn()) == of(PLANTED, *found(250, 1.0)) == []
    assert of(SPLIT, *drawn(reason=ELSEWHERE.removeprefix("not a bound: "))) == []
    missing = replace(SPLIT, split_records=COUNT + 3)
    assert of(missing, *drawn(reason=MISSING.removeprefix("not a bound: "))) == []
    assert of(BROKEN, *drawn(reason="it is another", name="")) == []
    old = Evidence(
        method="one run, Steinke 2023", quantity="epsilon", estimate=2.1, lower=2.1, bound=Bound.LOWER,
        samples={"canaries": 1000, "guesses": 100}, details={"delta": 1e-5, "correct": 95, "copies": 1},
    )  # fmt: skip
    assert of(PLANTED, old) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quantity": "epsilonx, loss"}, "such a bound is on epsilon, and has another name"),
        ({"quantity": "mu, loss"}, "such a bound is on epsilon"),
        ({"quantity": "epsilon, loss of groups of 4"}, "not that of canaries with 1 copies"),
        ({"quantity": "epsilon of a group, loss"}, "disagree on whether it is of groups"),
        ({"details": ("copies", None)}, "its copies is missing"),
        ({"details": ("delta", None)}, "its delta is missing"),
        ({"details": ("ceiling", 9.0)}, "it cannot exceed 9"),
        ({"samples": {"canaries": COUNT, "guesses": 7}}, "none of its sets makes 7 guesses"),
        ({"estimate": 0.1}, "its estimate is another number"),
        ({"lower": None}, "no value if and only if"),
        ({"bound": Bound.TWO_SIDED}, "no value if and only if"),
    ],
)
def test_a_bound_in_another_form_is_noticed(change: dict[str, Any], says: str) -> None:
    """Planted: a bound of another name, or without the entries by which a gate knows it, which no policy judges."""
    area, epsilon, mu = drawn()
    if isinstance(entry := change.get("details"), tuple):
        name, value = entry
        left = {key: number for key, number in epsilon.details.items() if key != name}
        change = {"details": left if value is None else {**left, name: value}}
    assert any(says in fault for fault in of(SPLIT, area, replace(epsilon, **change), mu))


@pytest.mark.parametrize(
    ("reason", "parameters", "says"),
    [
        (MISSING, SPLIT, "its attacks judge all records"),
        ("not a bound: different records of the split have the same text, so coins are shared", SPLIT, "judge all"),
        ("not a bound: it was a bad day", SPLIT, "for a reason that no audit has: 'not a bound: it was a bad day'"),
        ("not a bound: it is another", PLANTED, "no condition of its canaries is violated"),
    ],
)
def test_a_bound_withheld_without_need_is_noticed(reason: str, parameters: AuditParameters, says: str) -> None:
    """Planted: a bound above the claim that is said to be none."""
    _, *bounds = drawn(name="loss" if parameters is SPLIT else "")
    area = drawn()[0]
    withheld = [replace(each, estimate=None, lower=None, bound=Bound.NONE, reason=reason) for each in bounds]
    assert any(says in fault for fault in of(parameters, area, *withheld))


def test_bounds_are_withheld_together_and_stated_together() -> None:
    area, *bounds = drawn()
    _, *others = drawn(reason=ELSEWHERE.removeprefix("not a bound: "), name="zlib")
    both = replace(SPLIT, attack=("loss", "zlib"))
    assert any("only some of them" in fault for fault in of(both, area, *bounds, *others))
    assert any("does not state both" in fault for fault in of(SPLIT, area, bounds[0]))
    assert any("a condition is violated" in fault for fault in of(BROKEN, *found(250, 1.0)))


def test_both_observations_of_canary_gradients_are_bounded() -> None:
    """Planted: without the bounds by every step, which show most, or with them under a name that no check looks for."""
    fair = Assumption(name="independent coins", statement="of its own", state=AssumptionState.ASSERTED)
    gradients = AuditParameters(canary_conditions=(fair,))
    (_, *every), (_, *end), (_, *other) = (drawn(name=name) for name in ("every step", "final weights", "each step"))
    assert of(gradients, *every, *end) == []
    assert of(replace(gradients, canary_commitment="blake3:0"), *drawn(name="")[1:]) == []
    (left_out,) = of(gradients, *end)
    assert "no bound from what was observed of 'every step'" in left_out
    assert len(of(gradients)) == 2
    assert any("bounds epsilon by 'each step'" in fault for fault in of(gradients, *other, *end))


@pytest.mark.parametrize(
    ("count", "claim", "stands"),
    [(20_001, 2.0, True), (5001, 2.0, False), (1001, 1.0, False), (1001, 7.0, False), (30, 1.0, False)],
)
def test_a_claim_is_consistent_only_if_a_worse_model_would_have_been_told(
    count: int, claim: float, *, stands: bool
) -> None:
    """Planted: a claim called consistent by an audit that could not have contradicted it.

    With 5001 canaries randomized response would be told, and Gaussian noise would not.
    """
    bounds, subject = found(count, 0.0), f"({claim:g}, 1e-05)-DP, as claimed"
    verdict = Verdict(subject=subject, outcome=Outcome.CONSISTENT, reason="told")
    report = PrivacyReport(step="audit", created="", versions={}, evidence=bounds, verdicts=(verdict,))
    assert (list(wrong_claims(report)) == []) is stands
    proved = replace(report, verdicts=(replace(verdict, outcome=Outcome.PROVED),))
    assert any("is PROVED, but" in fault for fault in wrong_claims(proved))
