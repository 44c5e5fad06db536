"""The plan that an audit of secrets tests is the one that the model was trained by, and the one that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from verify.audits.secrets.settings import other_plans
from verify.audits.verdicts import other_verdicts
from verify.checks import CHECKS

PLAN, OTHER = "blake3:" + "1" * 64, "blake3:" + "2" * 64


def report(step: str, *plans: str) -> PrivacyReport:
    inputs = tuple(Artifact(role="plan", path="some/plan.safetensors", digest=plan, bytes=1) for plan in plans)
    return PrivacyReport(step=step, created="2030-01-01T00:00:00Z", versions={}, inputs=inputs)


@pytest.mark.parametrize(
    ("tested", "followed", "says"),
    [
        ([PLAN], [report("retrain", PLAN)], ""),
        ([PLAN], [report("noise"), report("retrain", PLAN), report("retrain", OTHER)], ""),
        ([PLAN], [report("retrain", OTHER)], "names another"),
        ([PLAN], [report("retrain", OTHER), report("retrain", PLAN)], "names another"),
        ([PLAN], [report("retrain")], "names none"),
        ([], [report("retrain", PLAN)], ""),
        ([PLAN], [], ""),
    ],
)
def test_another_plan_than_the_training_s_is_refuted(
    tested: list[str], followed: list[PrivacyReport], says: str
) -> None:
    found = list(other_plans(Path("a.report.json"), report("audit", *tested), followed))
    assert len(found) == bool(says)
    assert all(each.outcome is Outcome.REFUTED and says in each.reason for each in found)
    assert other_plans in CHECKS


def test_the_verdict_is_on_the_plan_that_was_read() -> None:
    tested = Evidence(
        method="secret protection", quantity="secrets told", estimate=0.0, samples={"secrets": 10},
        details={"needed": 8.0, "p_value": 1.0, "level": 0.01},
    )  # fmt: skip

    def on(plan: str) -> list[str]:
        subject = f"(prior, posterior)-secret protection, as planned in {plan}"
        verdict = Verdict(subject=subject, outcome=Outcome.INCONCLUSIVE, reason="")
        audit = replace(report("audit", PLAN), evidence=(tested,), verdicts=(verdict,))
        return list(other_verdicts(audit, (), by_coins=False))

    assert on("plan.safetensors") == []
    for other in ("stricter.safetensors", "", "plan.safetensors and more"):
        assert any("is on a plan that its inputs do not name" in fault for fault in on(other))
