"""Data-set inference: one test by all scores together, of whether the members' file was trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.findings import Findings
from audits.membership.audit import MembershipAudit
from audits.membership.request import MembershipRequest
from audits.scores.scorer import compute_scores, plan_scoring
from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.storage.digest import NamedFiles
from tests.audits.membership.planted import Ruled
from tests.audits.tiny import sentences, write_jsonl
from verify.audits.consistency import faults
from verify.audits.evidence import check_evidence


@dataclass
class Evener(Ruled):
    """A model that finds records easy or hard as a whole, and whose tokens of ``known`` rows differ a little less."""

    evener: float = 0.0
    known: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = SimpleNamespace(tokenizer=self.model.tokenizer, tokenizer_from=Path("m"), path=Path("m"))
        self.rule = self._rule

    def describe(self) -> dict[str, Any]:
        return {"task": self.task}

    def _rule(self, row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        spread = 0.5 - self.evener * (row.tobytes() in self.known)
        return np.asarray(random.normal() + random.normal(-4, spread, size=len(row) - 1))


def audited(folder: Path, evener: float, *attacks: str, seed: int = 0, side: int = 150) -> Findings:
    source = np.random.default_rng(seed)
    paths = [folder / f"{name}{seed}.jsonl" for name in "mn"]
    for path in paths:
        rows = (source.integers(10, 99, size=30).tolist() for _ in range(side))
        path.write_text("".join(json.dumps({"text": " ".join(map(str, row))}) + "\n" for row in rows))
    model = Evener(rule=lambda row, _: row[1:], evener=evener)
    audit = MembershipAudit(model, MembershipRequest(members=paths[0], nonmembers=paths[1], attacks=attacks))
    model.known = {row.tobytes() for row, member in zip(audit.rows, audit._work.member, strict=True) if member}
    return audit.judge(compute_scores(plan_scoring(model, audit.rows)), 0.05)


@pytest.mark.slow
def test_one_test_by_all_scores_finds_what_no_score_shows(tmp_path: Path) -> None:
    found = audited(tmp_path, 0.06, "fused")
    area = next(item for item in found.evidence if item.quantity == "AUC" and item.method == "fused")
    assert area.test is not None
    assert (area.test.compared, found.parameters["attack"]) == (1, ["fused"])
    assert found.verdicts[0].outcome is Outcome.REFUTED
    assert "adjusted" not in found.verdicts[0].reason
    several = audited(tmp_path, 0.06, "loss", "min-k", "min-k++")
    p_values = {item.method: item.test.p_value for item in several.evidence if item.test is not None}
    assert area.test.p_value <= p_values["fused"] < min(p_values[name] for name in ("loss", "min-k", "min-k++"))


@pytest.mark.slow
def test_where_nothing_was_trained_on_nothing_is_found(tmp_path: Path) -> None:
    found = audited(tmp_path, 0.0, "fused", seed=1)
    assert found.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert found.evidence[0].test is not None
    assert found.evidence[0].test.p_value > 0.05


def test_what_cannot_be_judged_as_one_is_said(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--attack fused judges all scores as one; remove every other --attack"):
        audited(tmp_path, 0.0, "fused", "loss")
    with pytest.raises(CommandError, match="--attack fused cannot be run: it learns .* from at least 100 members"):
        audited(tmp_path, 0.0, "fused", side=60)


def test_the_one_test_is_made_again_by_verify(tmp_path: Path, llama: Path) -> None:
    members = write_jsonl(tmp_path / "m.jsonl", sentences(100, 1))
    others = write_jsonl(tmp_path / "n.jsonl", sentences(100, 2))
    report_path = tmp_path / "a.report.json"
    sides = ["--members", str(members), "--nonmembers", str(others), "--attack", "fused"]
    logged = ["--log", str(tmp_path / "log.jsonl"), "--device", "cpu", "-q"]
    assert run(["audit", "membership", str(llama), *sides, "-o", str(report_path), *logged]) == 0
    report = read_report(report_path)
    assert not list(faults(report))
    (right,) = check_evidence(report_path, report, NamedFiles()).verdicts
    assert right.outcome is Outcome.CONSISTENT
    first, *rest = report.evidence
    assert first.test is not None
    relabelled = first.test.relabellings + 1
    forged = replace(first, test=replace(first.test, p_value=(round(first.test.p_value * relabelled) - 5) / relabelled))
    wrong = check_evidence(report_path, replace(report, evidence=(forged, *rest)), NamedFiles()).verdicts
    assert any("relabelling the ranks gives" in fault.reason for fault in wrong)
