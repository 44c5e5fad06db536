"""A joint test of attacks has to follow from its own numbers, and the verdict from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from audits.statistics.power import detectable_area_beyond
from privctl.domain.evidence import Evidence, JointTest
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from tests.verify.audits.test_guard import CALM, item
from verify.audits.consistency import faults


def attack(method: str, lower: float, p_value: float, **changes: Any) -> Evidence:
    test = JointTest(
        p_value=p_value, level=0.05, compared=2, relabellings=999, critical=2.4,
        detectable=detectable_area_beyond(2.4, 300, 300),
    )  # fmt: skip
    return replace(item(method, lower, lower + 0.1), test=replace(test, **changes))


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports made here do not answer all that an audit is asked."""
    monkeypatch.setattr("verify.audits.asked.faults", lambda *_: ())


def report(outcome: Outcome, *attacks: Evidence) -> PrivacyReport:
    return PrivacyReport(
        step="audit",
        created="2030-01-01T00:00:00Z",
        versions={},
        inputs=tuple(Artifact(role=r, path=f"{r}.jsonl", digest=r, bytes=9) for r in ("members", "nonmembers")),
        parameters={"attack": ["loss", "zlib"], "confidence": 0.95, "least_auc": 0.58, "seed": 0},
        evidence=(*attacks, item("blind baseline", 0.48, 0.56, **CALM), item("length baseline", 0.45, 0.55)),
        verdicts=(Verdict(subject="members cannot be told from non-members", outcome=outcome, reason="as told"),),
    )


LOSS, ZLIB = attack("loss", 0.49, 0.012), attack("zlib", 0.45, 0.4)


def test_the_verdict_follows_from_the_joint_test() -> None:
    """Intervals with a chance level inside, and a p-value that decides."""
    assert list(faults(report(Outcome.REFUTED, LOSS, ZLIB))) == []
    (fault,) = faults(report(Outcome.INCONCLUSIVE, LOSS, ZLIB))
    assert "loss tells them apart" in fault
    calm = attack("loss", 0.45, 0.3)
    assert list(faults(report(Outcome.CONSISTENT, calm, ZLIB))) == []
    (fault,) = faults(report(Outcome.REFUTED, calm, ZLIB))
    assert "its joint test finds no attack better than chance" in fault
    weak = [replace(each, test=replace(each.test, detectable=None)) for each in (calm, ZLIB) if each.test]
    (fault,) = faults(report(Outcome.CONSISTENT, *weak))
    assert "which its evidence does not support" in fault


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relabellings": 9, "p_value": 0.1}, "too few for a p-value of at most its level"),
        ({"level": 0.2}, "the level of its joint test is 0.2"),
        ({"level": 0.0}, "the level of its joint test is 0"),
        ({"compared": 1}, "its joint test is of 1 attack, and 2 of the 2"),
        ({"p_value": 0.0}, "999 relabellings give no p-value of 0"),
        ({"p_value": 0.01234}, "999 relabellings give no 0.01234"),
        ({"p_value": 1.2}, "999 relabellings give no p-value of 1.2"),
        ({"detectable": 0.52}, "an AUC of 0.52 is not the smallest detectable"),
        ({"critical": None}, "it states a detectable AUC, but not what it follows from"),
        ({"critical": None, "detectable": None, "p_value": 0.01}, "no p-value of at most 0.05 can be reached"),
    ],
)
def test_numbers_that_no_joint_test_gives(changes: dict[str, Any], words: str) -> None:
    attacks = [replace(each, test=replace(each.test, **changes)) for each in (LOSS, ZLIB) if each.test]
    assert any(words in fault for fault in faults(report(Outcome.REFUTED, *attacks)))


def test_an_attack_left_out_of_the_joint_test() -> None:
    (fault,) = faults(report(Outcome.REFUTED, LOSS, replace(ZLIB, test=None)))
    assert "of 2 attacks, and 1 of the 2" in fault
    (fault,) = faults(report(Outcome.REFUTED, LOSS, attack("zlib", 0.45, 0.4, compared=3)))
    assert "not judged by one joint test" in fault


def test_an_area_beyond_the_critical_value_with_a_large_p_value() -> None:
    hidden = attack("loss", 0.55, 0.4)
    found = list(faults(report(Outcome.INCONCLUSIVE, hidden, ZLIB)))
    assert any("loss, joint test: p is 0.4, but its AUC lies" in fault for fault in found)


@pytest.mark.parametrize(
    ("center", "deviations", "possible"), [(0.48, 1.7, True), (0.51, 1.0, True), (0.6, 1.0, False), (0.48, 4.0, False)]
)
def test_a_fitted_score_varies_little_more_than_a_fixed_one(center: float, deviations: float, possible: bool) -> None:
    """Else any area would lie near the center that the report states."""
    fused = attack("fused", 0.45, 0.4, detectable=None)
    details = {**fused.details, "center": center, "deviation": deviations * (601 / (12 * 300 * 300)) ** 0.5}
    found = list(faults(report(Outcome.REFUTED, LOSS, replace(fused, details=details))))
    assert any("fused, joint test: 300 members and 300 others do not give" in fault for fault in found) is not possible
