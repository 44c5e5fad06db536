"""A verdict that a model leaks has to follow from the guard that the report states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audits.membership.attack import beyond_rank
from audits.statistics.fitted import RELABELLED, WIDENED, NullLaw
from audits.statistics.metrics import auc
from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from verify.audits.consistency import _interval, faults
from verify.audits.ranks.figures import auc_with_interval
from verify.audits.ranks.limits import OF_FUSED, relabellings_of
from verify.audits.terms import BASELINES

CONFIDENCE = 0.99


def item(method: str, lower: float, upper: float, quantity: str = "AUC", **details: float) -> Evidence:
    """An interval around the middle of its ends, on relabellings' terms, over which nothing was skewed."""
    middle, chance = (lower + upper) / 2, 0.5 if quantity == "AUC" else 0.0
    drawn = OF_FUSED if quantity == "AUC" and method not in BASELINES else relabellings_of(600)
    law = NullLaw(chance=chance, center=chance, deviation=0.01, skewness=0.0, relabellings=drawn)
    stderr = (upper - middle) / law.reaches((1 - CONFIDENCE) / 2)[0]
    return Evidence(
        method=method, quantity=quantity, estimate=middle, lower=lower, upper=upper, confidence=CONFIDENCE,
        interval=WIDENED if quantity == "AUC" else RELABELLED, samples={"members": 300, "nonmembers": 300},
        details={**law.details, "stderr": stderr, **details},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports made here do not answer all that an audit is asked."""
    monkeypatch.setattr("verify.audits.asked.faults", lambda *_: ())


def report(outcome: Outcome, beats: float, guard: Mapping[str, float]) -> PrivacyReport:
    return PrivacyReport(
        step="audit",
        created="2030-01-01T00:00:00Z",
        versions={},
        inputs=tuple(Artifact(role=r, path=f"{r}.jsonl", digest=r, bytes=9) for r in ("members", "nonmembers")),
        parameters={"attack": ["loss"], "confidence": 0.95, "least_auc": 0.55, "seed": 0},
        evidence=(
            item("loss", 0.55, 0.65),
            item("loss", beats, beats + 0.1, "AUC over the blind baseline's"),
            item("blind baseline", 0.48, 0.56, **guard),
            item("length baseline", 0.45, 0.55),
        ),
        verdicts=(Verdict(subject="members cannot be told from non-members", outcome=outcome, reason="as told"),),
    )


ALARMED, CALM = {"p_value": 0.1, "level": 0.2}, {"p_value": 0.5, "level": 0.2}


def test_an_accusation_needs_a_calm_guard_or_an_attack_that_beats_the_records() -> None:
    assert list(faults(report(Outcome.REFUTED, -0.02, CALM))) == []
    assert list(faults(report(Outcome.REFUTED, 0.02, ALARMED))) == []
    (fault,) = faults(report(Outcome.REFUTED, -0.02, ALARMED))
    assert "no attack is certain to do better" in fault
    (fault,) = faults(report(Outcome.INCONCLUSIVE, -0.02, CALM))
    assert "loss tells them apart" in fault
    assert list(faults(report(Outcome.INCONCLUSIVE, -0.02, ALARMED))) == []


def test_a_finding_that_beats_the_records_is_not_called_confounded() -> None:
    (fault,) = faults(report(Outcome.INCONCLUSIVE, 0.02, ALARMED))
    assert "loss tells them apart" in fault


@pytest.mark.parametrize(
    ("control", "right"),
    [
        ((), Outcome.INCONCLUSIVE),
        ((0.45, 0.55, 0.54), Outcome.REFUTED),
        ((0.45, 0.55, 0.7), Outcome.INCONCLUSIVE),  # it would have missed too much
        ((0.51, 0.61, 0.54), Outcome.INCONCLUSIVE),
    ],
)
def test_records_that_certainly_differ_need_a_control(control: tuple[float, ...], right: Outcome) -> None:
    for outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE):
        audit_report = report(outcome, 0.02, ALARMED)
        evidence = [
            audit_report.evidence[0],
            audit_report.evidence[1],
            item("blind baseline", 0.52, 0.6, **ALARMED),
            audit_report.evidence[3],
        ]
        if control:
            lower, upper, detectable = control
            evidence.append(item("reference control", lower, upper, detectable=detectable))
        found = list(faults(replace(audit_report, evidence=tuple(evidence))))
        assert any("verdict" in fault for fault in found) is (outcome is not right)


def test_reports_from_before_the_guard_are_judged_by_their_intervals() -> None:
    assert list(faults(report(Outcome.REFUTED, -0.02, {}))) == []


def test_an_interval_that_its_moments_do_not_give() -> None:
    right = report(Outcome.REFUTED, 0.02, CALM)
    wrong = replace(right.evidence[2], upper=0.6)
    (fault,) = faults(replace(right, evidence=(*right.evidence[:2], wrong, *right.evidence[3:])))
    assert fault == "blind baseline, AUC: its interval is not its estimate's and its moments'"


@pytest.mark.parametrize("changed", [{"lower": None}, {"upper": None}, {"interval": "another"}])
def test_a_difference_from_the_baseline_states_its_interval(changed: Mapping[str, Any]) -> None:
    right = report(Outcome.REFUTED, 0.02, ALARMED)
    wrong = replace(right.evidence[1], **changed)
    found = list(faults(replace(right, evidence=(right.evidence[0], wrong, *right.evidence[2:]))))
    assert any("AUC over the blind baseline's: its interval is" in fault for fault in found)


def _evidence_of(members: list[float], others: list[float], interval: str) -> Evidence:
    """The AUC of these scores with the interval of this name, as computed from ranks."""
    found = auc_with_interval(np.array(members), np.array(others), 0.01, interval)
    return Evidence(
        method="loss", quantity="AUC", estimate=found.estimate, lower=found.lower, upper=found.upper, confidence=0.99,
        interval=found.interval, samples={"members": len(members), "nonmembers": len(others)},
        details=found.details,
    )  # fmt: skip


@pytest.mark.parametrize(("members", "others"), [([1.0, 2.0, 3.0], [0.0] * 9), ([0.0, 5.0], [1.0, 2.0] * 9)])
def test_an_interval_by_chernoff_is_computed_again(members: list[float], others: list[float]) -> None:
    """Audits used it before the interval with a record added."""
    right = _evidence_of(members, others, "Chernoff over all pairs")
    assert right.interval == "Chernoff over all pairs"
    assert _interval(right) == ""
    for end in ("lower", "upper"):
        assert _interval(replace(right, **{end: 0.5 * (getattr(right, end) + right.estimate) + 0.001})) != ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "others"),
    [([1.0, 2.0, 3.0], [0.0] * 9), ([0.0, 5.0], [1.0, 2.0] * 9), ([0.0] * 40 + [1.0], [0.0] * 30), ([3, 5, 9], [4, 6])],
)
def test_an_interval_with_a_record_added_is_computed_again(members: list[float], others: list[float]) -> None:
    found = auc(np.array(members), np.array(others), 0.01)
    right = _evidence_of(members, others, found.interval)
    assert (right.estimate, right.lower, right.upper) == pytest.approx((found.value, found.lower, found.upper))
    assert right.details == pytest.approx({"chance": 0.5, **found.moments})
    assert _interval(right) == ""
    beside = replace(right, lower=0.3, estimate=0.2, upper=1.0)
    assert _interval(beside) == "its interval is not around its estimate"
    for end in ("lower", "upper"):
        narrower = replace(right, **{end: 0.5 * (getattr(right, end) + found.value)})  # type: ignore[arg-type]
        follows = f"its {end} limit does not follow from its other numbers"
        assert getattr(right, end) == found.value or _interval(narrower) == follows
    if found.moments:
        assert _interval(replace(right, details={"chance": 0.5})) != ""


def test_what_chance_gives_is_computed_again() -> None:
    """An attack is only held against what its report says that chance gives."""
    right = report(Outcome.REFUTED, 0.02, CALM)
    rate = Evidence(
        method="loss", quantity="TPR at 1 % FPR", estimate=0.9, confidence=CONFIDENCE,
        samples={"members": 300, "nonmembers": 300}, details={"chance": beyond_rank(3, 300, 1 - CONFIDENCE)},
    )  # fmt: skip
    accuracy = replace(rate, quantity="accuracy", details={"chance": 2 / 3}, samples={"members": 100, "nonmembers": 50})
    whole = (rate, accuracy, *right.evidence)
    assert [fault for fault in faults(replace(right, evidence=whole)) if "chance" in fault] == []
    for i, stated in ((0, 0.9), (1, 0.9), (2, 0.4)):
        changed = replace(whole[i], details={**whole[i].details, "chance": stated})
        found = list(faults(replace(right, evidence=(*whole[:i], changed, *whole[i + 1 :]))))
        fault = next(each for each in found if "chance" in each)
        assert f"{whole[i].quantity}: chance does not give {stated:g} with " in fault
    without = {name: value for name, value in whole[2].details.items() if name != "chance"}
    hidden = (*whole[:2], replace(whole[2], details=without), *whole[3:])
    assert "loss, AUC: its chance is missing" in list(faults(replace(right, evidence=hidden)))
