"""The figures of an audit against the ranks it kept: edited ones are refuted, others are named as not recomputed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from audits.membership.attack import RATES, Settings, auc_evidence, curve_evidence
from audits.membership.baseline import BLIND, DIFFERENCE
from audits.membership.joint_test import with_joint_test
from audits.membership.verdict import SUBJECT
from audits.scores.scores_file import staged_scores
from audits.scores.table import FIELDS, ScoreTable
from audits.statistics.max_t import rank_statistics
from privctl.cli import run
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.codec import encode
from privctl.reports.files import file_artifact
from tests.bench.paired_areas import area_difference
from tests.verify.reports import trained
from verify.run import Verification, read, verify

_SEPARATE = "separate"


def table_of(members: int, nonmembers: int) -> ScoreTable:
    count = members + nonmembers
    member = np.arange(count) < members
    empty = np.empty(0, np.int64)
    return ScoreTable(
        **{name: np.zeros(count, np.float32) for name in FIELDS},
        offsets=np.arange(count + 1), member=member, line=np.arange(count), truncated=np.zeros(count, np.bool_),
        skipped_member=empty.astype(np.bool_), skipped_line=empty, skipped_reason=empty.astype(np.uint8),
    )  # fmt: skip


def audited(folder: Path, kind: str) -> Path:
    """An audit's report whose figures are the audit's own, by its own statistics, of scores made up here."""
    members, nonmembers = (6, 60) if kind == "lopsided" else (150, 1200)
    random, settings = np.random.default_rng(4), Settings(confidence=1 - 0.05 / 9)
    table = table_of(members, nonmembers)
    scores = random.standard_normal(members + nonmembers) + 0.4 * table.member
    if kind == "ties":
        scores = np.round(scores, 1)
    if kind == "nearly all equal":
        scores = np.where(scores > 2.8, scores, 0.0)
    if kind == _SEPARATE:
        scores[table.member] += 20
    judged = np.arange(len(scores)) % 2 == 0
    looks = random.standard_normal(len(scores))
    inside = table.member[judged]
    one, two = scores[judged], looks[judged]
    difference, _, limits = area_difference((one[inside], one[~inside]), (two[inside], two[~inside]))
    evidence = (
        *curve_evidence("loss", scores, table.member, settings),
        auc_evidence(BLIND, looks[judged], inside, settings),
        Evidence(
            method="loss", quantity=DIFFERENCE, estimate=difference, **limits,
            confidence=settings.confidence, interval="DeLong, paired", details={"chance": 0.0},
            samples={"members": int(inside.sum()), "nonmembers": int((~inside).sum())},
        ),
        Evidence(method="extraction", quantity="records told word for word", estimate=3.0, bound=Bound.NONE),
    )  # fmt: skip
    report_path, kept = folder / f"{kind}.report.json", folder / f"{kind}.scores.safetensors"
    arrays = {"member": table.member, "score.loss": scores, "score.blind": np.where(judged, looks, np.nan)}
    with staged_scores(kept, arrays, {}) as pending:
        pending.commit()
    report = PrivacyReport(
        step="audit", created="2026-01-01T00:00:00Z", versions={}, parameters={"confidence": 0.95}, evidence=evidence,
        outputs=(file_artifact("scores", kept, report_path),),
    )  # fmt: skip
    report_path.write_text(encode(report))
    return report_path


def judged(found: Verification) -> tuple[list[Verdict], list[str]]:
    """The verdicts on evidence, and what is listed as not recomputed."""
    omitted = [o.reason for o in found.omissions if o.what == "evidence not recomputed"]
    return [verdict for verdict in found.verdicts if verdict.subject == "evidence"], omitted


def forged(path: Path, change: Callable[[dict[str, Any]], object]) -> list[Verdict]:
    report = json.loads(path.read_text())
    change(report)
    report_path = path.with_name("forged.report.json")
    report_path.write_text(json.dumps(report))
    return judged(verify(report_path, read(report_path)))[0]


@pytest.mark.parametrize("kind", ["usual", "ties", "nearly all equal", _SEPARATE, "lopsided"])
def test_an_audits_own_figures_follow_from_its_ranks(tmp_path: Path, kind: str) -> None:
    path = audited(tmp_path, kind)
    (verdict,), (omitted,) = judged(verify(path, read(path)))
    assert verdict.outcome is Outcome.CONSISTENT
    assert verdict.reason.startswith("5 figures are what the ranks kept give")
    assert "1 of 6 measured figures is the report's word" in omitted
    assert "extraction: records told word for word" in omitted


#: Entry, key or detail, and by how much it is made to look better.
EDITS = [(0, "estimate"), (0, "lower"), (0, "upper"), (0, "confidence"), (1, "estimate"), (1, "lower"), (1, "upper"),
         (3, "lower"), (3, "estimate"), (4, "estimate")]  # fmt: skip


@pytest.mark.parametrize(("entry", "key"), EDITS)
def test_an_edited_figure_is_refuted(tmp_path: Path, entry: int, key: str) -> None:
    def change(report: dict[str, Any]) -> None:
        report["evidence"][entry][key] *= 0.999

    verdicts = forged(audited(tmp_path, "usual"), change)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.REFUTED}


@pytest.mark.parametrize("kind", ["nearly all equal", _SEPARATE, "lopsided"])
@pytest.mark.parametrize("key", ["lower", "upper"])
def test_an_edited_limit_without_a_variance_is_refuted(tmp_path: Path, kind: str, key: str) -> None:
    path = audited(tmp_path, kind)
    verdicts = forged(path, lambda report: report["evidence"][0].update({key: report["evidence"][0][key] * 0.999}))
    assert {verdict.outcome for verdict in verdicts} == {Outcome.REFUTED}


@pytest.mark.parametrize(
    "name", ["true_positives", "false_positives", "fpr_upper", "chance", "upper_rank", "upper_positives"]
)
def test_an_edited_count_is_refuted(tmp_path: Path, name: str) -> None:
    def change(report: dict[str, Any]) -> None:
        report["evidence"][1]["details"][name] += 1

    (verdict,) = forged(audited(tmp_path, "usual"), change)
    assert verdict.outcome is Outcome.REFUTED
    assert f"its {name} is" in verdict.reason


@pytest.mark.parametrize("kind", ["usual", "ties", "lopsided"])
def test_a_p_value_has_to_be_on_the_side_of_its_ranks(tmp_path: Path, kind: str) -> None:
    """That of the joint test passes; one that was lowered or raised past the level, with all else left, does not."""
    path = audited(tmp_path, kind)
    report = read(path)
    arrays = load_file(tmp_path / f"{kind}.scores.safetensors")
    for scores in (arrays["score.loss"], np.random.default_rng(8).permutation(arrays["score.loss"])):
        member, kept = arrays["member"], tmp_path / f"{kind}.scores.safetensors"
        with staged_scores(kept, {"member": member, "score.loss": scores}, {}) as pending:
            pending.commit()
        evidence = curve_evidence("loss", scores, member, Settings(confidence=1 - 0.05 / 9))
        tested = with_joint_test({"loss": evidence}, {"loss": rank_statistics(scores, RATES)}, member, 1, 0.05)
        test = tested[0].test
        assert test is not None
        for p_value, right in ((test.p_value, True), (0.9 if test.rejects else 0.002, False)):
            changed = (replace(tested[0], test=replace(test, p_value=p_value)), *tested[1:])
            outputs = (file_artifact("scores", kept, path),)
            path.write_text(encode(replace(report, evidence=changed, outputs=outputs)))
            (verdict,), _ = judged(verify(path, read(path)))
            assert (verdict.outcome is Outcome.CONSISTENT) is right
            assert right or "joint test: its p-value is" in verdict.reason


def test_narrow_intervals_of_less_confidence_do_not_add_up(tmp_path: Path) -> None:
    """Each follows from the ranks at its own confidence; together they may be wrong more often than the audit says."""
    path = audited(tmp_path, "usual")
    report, settings = read(path), Settings(confidence=0.9)
    table = table_of(150, 1200)
    random = np.random.default_rng(4)
    scores = random.standard_normal(1350) + 0.4 * table.member
    path.write_text(encode(replace(report, evidence=curve_evidence("loss", scores, table.member, settings))))
    (verdict,), _ = judged(verify(path, read(path)))
    assert verdict.outcome is Outcome.REFUTED
    assert "its 3 intervals are wrong with chance 0.3 together, but it states 0.05" in verdict.reason


def test_a_conclusion_against_the_figures_is_refuted(tmp_path: Path) -> None:
    calm = {"subject": SUBJECT, "outcome": "CONSISTENT", "reason": "no attack found a difference", "status": None}
    (verdict,) = forged(audited(tmp_path, "usual"), lambda report: report.update(verdicts=[calm]))
    assert verdict.outcome is Outcome.REFUTED
    assert "loss: AUC lies above chance" in verdict.reason


def test_without_the_ranks_or_with_others_nothing_is_recomputed_and_that_is_said(tmp_path: Path) -> None:
    path, other = audited(tmp_path, "usual"), audited(tmp_path, "ties")
    kept = tmp_path / "usual.scores.safetensors"
    kept.write_bytes(other.with_name("ties.scores.safetensors").read_bytes())
    verdicts, (omitted,) = judged(verify(path, read(path)))
    assert verdicts == []
    assert "6 of 6 measured figures are the report's word (the ranks at hand are not those of this audit)" in omitted
    kept.unlink()
    assert "the ranks that the report names are not at hand" in judged(verify(path, read(path)))[1][0]


def test_the_line_that_evidence_is_not_recomputed_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = trained(tmp_path, "plain")
    capsys.readouterr()
    assert run(["verify", str(report), "-q"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "not checked: evidence not recomputed: 1 of 1 measured figure is the report's word" in stdout
    assert "training loss, nats" in stdout
