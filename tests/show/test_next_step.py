"""The step that is advised after an audit that could not decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from privctl.domain.report import ParentReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import write_report
from privctl.show.gather.next_step import next_step
from privctl.storage.digest import file_digest
from tests.show.test_decision import inputs, membership, parsed, report


def test_an_audit_of_all_training_records_asks_for_no_more_members(tmp_path: Path) -> None:
    """There are none: a run with a guarantee was told to audit again with members that cannot exist."""
    model, members, others = inputs("members", "nonmembers")
    trained_on = replace(members, role="data")
    write_report(tmp_path / "model.report.json", replace(report(), step="retrain", inputs=(trained_on,)))
    parent = ParentReport(path="model.report.json", digest=file_digest(tmp_path / "model.report.json"))
    small = replace(
        membership(0.0, 60), inputs=(model, members, others), parameters={"least_auc": 0.55}, parents=(parent,)
    )
    step = next_step(small, tmp_path / "model.audit.report.json")
    words = parsed(step.command)
    assert words[words.index("--members") + 1].endswith(f"/{members.path}")
    assert words[words.index("--nonmembers") + 1] == "MORE-NONMEMBERS.jsonl"
    assert "--least-auc" in step.advice
    other = replace(small, inputs=(model, replace(members, digest="blake3:" + 64 * "0"), others))
    assert "MORE-MEMBERS.jsonl" in parsed(next_step(other, tmp_path / "model.audit.report.json").command)


def test_another_file_than_the_planted_one_is_to_be_replaced(tmp_path: Path) -> None:
    """More canaries in the next training were advised where the wrong file was given."""
    reason = "the file has other bytes than the one that was planted; 9 included canaries are elsewhere"
    verdict = Verdict(subject="planted canaries left no trace", outcome=Outcome.INCONCLUSIVE, reason=reason)
    step = next_step(replace(membership(0.0, 60), verdicts=(verdict,)), tmp_path / "model.audit.report.json")
    assert "give the file that was planted as --canary-data" in step.advice
    other = replace(verdict, reason="the model's training report names other data than the planted ones")
    step = next_step(replace(membership(0.0, 60), verdicts=(other,)), tmp_path / "model.audit.report.json")
    assert step.advice == "audit the model that was trained on the planted data"
    again = replace(verdict, reason="it is too small")
    step = next_step(replace(membership(0.0, 60), verdicts=(again,)), tmp_path / "model.audit.report.json")
    assert "plant more canaries" in step.advice
