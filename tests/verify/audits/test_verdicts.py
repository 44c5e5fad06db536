"""A verdict that accuses the model needs a finding, and one that clears it needs that nothing was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from tests.verify.audits.test_reach import report
from verify.audits.verdicts import other_verdicts

MEMORIZED, NOT_EASIER = "training text cannot be extracted", "training made no secret easier to tell"
TRACELESS, PLANNED = "planted canaries left no trace", "(prior, posterior)-secret protection, as planned in p"
HELD = [
    Assumption(name=name, statement="so it is", state=AssumptionState.CHECKED)
    for name in (
        "commitment", "independent coins", "number included", "distinct canaries", "trained on the planted data"
    )
]  # fmt: skip


def item(method: str, quantity: str, p_value: float, level: float = 0.01, **more: Any) -> Evidence:
    details = {"p_value": p_value, "level": level, "detected": float(p_value <= level), **more.pop("details", {})}
    return Evidence(method=method, quantity=quantity, estimate=0.5, bound=Bound.NONE, details=details, **more)


READ = (("train", "train.jsonl"), ("plan", "p"))


def wrong(subject: str, outcome: Outcome, *items: Evidence, conditions: Sequence[Assumption] = HELD) -> list[str]:
    found = report(*items)
    train, plan = (Artifact(role=role, path=path, digest="blake3:0", bytes=9) for role, path in READ)
    verdict = Verdict(subject=subject, outcome=outcome, reason="as told")
    stated: PrivacyReport = replace(found, inputs=(train, plan), verdicts=(verdict,))
    return list(other_verdicts(stated, conditions, by_coins=False))


def secrets(p_value: float, *, compared: int = 200, against: str = "drawn at random") -> Evidence:
    quantity = f"mean bits beyond, {against}, by loss"
    return item("secret trace", quantity, p_value, samples={"secrets": compared, "compared_with": 0})


def baseline_evidence(lower: float, p_value: float, level: float = 0.2) -> Evidence:
    return Evidence(
        method="secret baseline", quantity="area without the model", estimate=lower + 0.1, lower=lower,
        upper=lower + 0.2, details={"p_value": p_value, "level": level},
    )  # fmt: skip


HELD_OUT = "against held-out secrets"


@pytest.mark.parametrize(
    ("items", "right"),
    [
        ([secrets(0.001)], {Outcome.REFUTED}),
        ([secrets(0.5)], {Outcome.INCONCLUSIVE, Outcome.CONSISTENT}),
        ([secrets(0.5, compared=99)], {Outcome.INCONCLUSIVE}),
        # Of a comparison whose records may differ without the model nothing follows.
        ([secrets(0.001, against=HELD_OUT), baseline_evidence(0.4, 0.1)], {Outcome.INCONCLUSIVE}),
        ([secrets(0.001, against=HELD_OUT), baseline_evidence(0.6, 0.9)], {Outcome.INCONCLUSIVE}),
        ([secrets(0.001, against=HELD_OUT)], {Outcome.INCONCLUSIVE}),
        ([secrets(0.001, against=HELD_OUT), baseline_evidence(0.4, 0.9)], {Outcome.REFUTED}),
        ([], {Outcome.INCONCLUSIVE}),
    ],
)
def test_a_verdict_on_secrets(items: list[Evidence], right: set[Outcome]) -> None:
    for outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT):
        assert bool(wrong(NOT_EASIER, outcome, *items)) is (outcome not in right)


@pytest.mark.parametrize(
    ("p_value", "needed", "right"),
    [
        (0.001, 10, {Outcome.REFUTED}),
        (0.5, 10, {Outcome.INCONCLUSIVE, Outcome.CONSISTENT}),
        (0.5, 90, {Outcome.INCONCLUSIVE}),
    ],
)
def test_a_verdict_on_a_plan(p_value: float, needed: float, right: set[Outcome]) -> None:
    found = item(
        "secret protection", "secrets told against the plan", p_value, samples={"secrets": 100},
        details={"needed": needed},
    )  # fmt: skip
    for outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT):
        assert bool(wrong(PLANNED, outcome, found)) is (outcome not in right)
    assert wrong(PLANNED, Outcome.REFUTED)
    assert wrong(PLANNED, Outcome.CONSISTENT)
    assert wrong(PLANNED, Outcome.INCONCLUSIVE) == []
    assert any("no verdict" in fault for fault in wrong("of another", Outcome.INCONCLUSIVE, found))


def test_a_verdict_on_extraction_needs_a_comparison() -> None:
    rate = Evidence(method="extraction", quantity="rate on training text", estimate=0.5)
    (fault,) = wrong(MEMORIZED, Outcome.REFUTED, rate)
    assert "its evidence does not refute that" in fault
    assert wrong(MEMORIZED, Outcome.INCONCLUSIVE, rate) == []
    beyond = item("extraction", "rate beyond held-out text", 0.001)
    assert wrong(MEMORIZED, Outcome.REFUTED, rate, beyond) == []
    (fault,) = wrong(MEMORIZED, Outcome.INCONCLUSIVE, rate, beyond)
    assert "its evidence refutes that" in fault


def exposures(included: float, control: float, count: int = 200, effective: float = 200) -> list[Evidence]:
    more = {"samples": {"canaries": count}, "details": {"effective": effective}}
    return [
        item("canary exposure", "mean bits, included", included, **more),
        item("canary exposure", "mean bits, left out (control)", control, **more),
    ]


@pytest.mark.parametrize(
    ("items", "right"),
    [
        (exposures(0.001, 0.5), {Outcome.REFUTED}),
        (exposures(0.001, 0.001), {Outcome.INCONCLUSIVE}),
        (exposures(0.5, 0.5), {Outcome.INCONCLUSIVE, Outcome.CONSISTENT}),
        (exposures(0.5, 0.5, count=99), {Outcome.INCONCLUSIVE}),
        (exposures(0.5, 0.5, effective=45), {Outcome.INCONCLUSIVE}),
    ],
)
def test_a_verdict_on_canaries(items: list[Evidence], right: set[Outcome]) -> None:
    for outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT):
        assert bool(wrong(TRACELESS, outcome, *items)) is (outcome not in right)
    broken = [*HELD[1:], replace(HELD[0], state=AssumptionState.VIOLATED)]
    for outcome in (Outcome.REFUTED, Outcome.CONSISTENT):
        assert wrong(TRACELESS, outcome, *items, conditions=broken)
    assert wrong(TRACELESS, Outcome.INCONCLUSIVE, *items, conditions=broken) == []


def test_a_completed_canary_is_a_trace() -> None:
    completed = Evidence(
        method="canary completion", quantity="disclosed, included", estimate=0.01, details={"disclosed": 2}
    )
    (fault,) = wrong(TRACELESS, Outcome.CONSISTENT, *exposures(0.5, 0.5), completed)
    assert "the model completes a canary" in fault
