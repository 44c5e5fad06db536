"""Reports of audits of scores are held against the files of scores that they name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privctl
from audits.membership.groups import highest, weighed
from audits.record_scores.of_groups import _rounded as rounded
from audits.split.draw import SplitRequest, draw_split
from audits.statistics.laws import mean_ranks
from privctl.domain.errors import ExitCode
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report, write_report
from tests.audits.record_scores.test_audit_of_scores import drawn, table
from verify.audits.consistency import faults
from verify.audits.given import scores as given_scores


def evidence_verdicts(path: Path) -> list[tuple[Outcome, str]]:
    return [(v.outcome, v.reason) for v in privctl.verify(path).verdicts if v.subject == "evidence"]


def of_split(folder: Path, shift: float, name: str) -> Path:
    """The report on scores of the records of a split, of which members' are higher by ``shift``."""
    if not (folder / "split").exists():
        data = folder / "data.jsonl"
        data.write_text("".join(json.dumps({"text": f"record {i}"}) + "\n" for i in range(400)))
        draw_split(SplitRequest(data=data, folder=folder / "split"))
    source = np.random.default_rng(3)
    rows = ["id,member,score"]
    for side in ("members", "nonmembers"):
        count = len((folder / "split" / f"{side}.jsonl").read_text().splitlines())
        inside = side == "members"
        rows += [f"{side}:{i + 1},{int(inside)},{source.standard_normal() + shift * inside!r}" for i in range(count)]
    scores = folder / f"{name}.csv"
    scores.write_text("\n".join(rows) + "\n")
    privctl.audit_scores(scores, split=folder / "split" / "manifest.json")
    return folder / f"{name}.audit.report.json"


def test_every_figure_is_computed_again(tmp_path: Path) -> None:
    path = of_split(tmp_path, 1.0, "s")
    ((outcome, reason),) = evidence_verdicts(path)
    assert outcome is Outcome.CONSISTENT
    assert reason.startswith("5 figures are what the scores in the file give")
    assert "evidence not recomputed" not in [omission.what for omission in privctl.verify(path).omissions]


def test_groups_with_equal_scores_are_tied_by_both_readings() -> None:
    """Tenths far from 0, of which rounding keeps few digits."""
    for seed in range(40):
        source = np.random.default_rng(seed)
        index = np.repeat(np.arange(60), source.integers(1, 10, 60))
        scores = 1e6 + source.integers(0, 17, len(index)) / 10
        again = given_scores._of_groups({"s": scores}, index)
        for name, expected in (("s", weighed), ("s-top", highest)):
            assert (mean_ranks(rounded(expected(scores, index))) == mean_ranks(again[name])).all()


@pytest.mark.forged("the figures are those of other scores")
def test_figures_that_agree_with_each_other_and_not_with_the_scores_are_refuted(tmp_path: Path) -> None:
    """Planted: all that an audit of harmless scores says, under the names of scores that leak."""
    leaking, harmless = (read_report(of_split(tmp_path, shift, name)) for shift, name in ((2.0, "s"), (0.0, "t")))
    lying = replace(
        harmless,
        inputs=leaking.inputs,
        parameters={
            **harmless.parameters,
            "asked": {**harmless.parameters["asked"], "files": leaking.parameters["asked"]["files"]},
        },
    )
    assert list(faults(lying)) == []
    report_path = tmp_path / "s.audit.report.json"
    write_report(report_path, lying)
    reasons = " ".join(reason for outcome, reason in evidence_verdicts(report_path) if outcome is Outcome.REFUTED)
    assert "column score: AUC: its estimate is" in reasons
    assert "guesses made are said to be right, and the scores give" in reasons
    assert privctl.verify(report_path).exit_code is ExitCode.REFUTED
    (tmp_path / "s.csv").unlink()
    assert evidence_verdicts(report_path) == []
    (why,) = [
        omission.reason
        for omission in privctl.verify(report_path).omissions
        if omission.what == "evidence not recomputed"
    ]
    assert "the file of scores is not at hand as it was" in why


def _less(item: Evidence, name: str) -> Evidence:
    return replace(item, details={**item.details, name: item.details[name] - 1})


EDITS: dict[str, tuple[Callable[[Evidence], bool], Callable[[Evidence], Evidence]]] = {
    "area": (lambda e: e.quantity == "AUC", lambda e: replace(e, estimate=(e.estimate or 0) - 0.01)),
    "interval": (lambda e: e.quantity == "AUC", lambda e: replace(e, upper=(e.upper or 0) - 1e-6)),
    "rate": (lambda e: e.quantity == "TPR at 1 % FPR", lambda e: _less(e, "true_positives")),
    "p-value": (
        lambda e: e.quantity == "AUC",
        lambda e: replace(e, test=None if e.test is None else replace(e.test, p_value=e.test.p_value + 0.01)),
    ),
    # All coins: cut at the widest gap, which only scores show.
    "all coins": (lambda e: "guesses 4" in e.details, lambda e: _less(e, "correct 4")),
    "few coins": (lambda e: "guesses 1" in e.details, lambda e: _less(e, "correct 1")),
}


@pytest.mark.forged("one figure is another")
@pytest.mark.parametrize("name", EDITS)
def test_one_figure_that_is_another_is_refuted(name: str, tmp_path: Path) -> None:
    chosen, edit = EDITS[name]
    path = of_split(tmp_path, 0.3, "s")
    report = read_report(path)
    assert any(map(chosen, report.evidence))
    edited = [edit(item) if chosen(item) else item for item in report.evidence]
    write_report(path, replace(report, evidence=tuple(edited)))
    assert Outcome.REFUTED in [outcome for outcome, _ in evidence_verdicts(path)]


def _parquet(folder: Path, member: Any, scores: Any) -> dict[str, Any]:
    ids = [f"r{i}" for i in range(len(member))]
    parts = []
    for part in (0, 1):
        parts.append(folder / f"p{part}.parquet")
        pq.write_table(pa.table({"who": ids[part::2], "in": member[part::2], "loss": scores[part::2]}), parts[-1])
    return {"file": parts, "id_column": "who", "member_column": "in", "score_column": "loss"}


def _lines(folder: Path, member: Any, scores: Any) -> dict[str, Any]:
    rows = [{"id": i, "member": bool(m), "score": s} for i, (m, s) in enumerate(zip(member, scores, strict=True))]
    (folder / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"file": folder / "s.jsonl"}


def _tabs(folder: Path, member: Any, scores: Any) -> dict[str, Any]:
    text = table(folder / "s.csv", member, scores, -scores, names="a,b").read_text()
    (folder / "s.tsv").write_text("\ufeff" + text.replace(",", "\t"))
    return {"file": folder / "s.tsv", "score_column": ("a", "b")}


@pytest.mark.parametrize("make", [_parquet, _lines, _tabs])
def test_each_form_of_file_is_read_in_the_order_of_the_audit(make: Callable[..., Any], tmp_path: Path) -> None:
    """Few members against many others: their interval is of pairs, which the order of records decides."""
    member, scores = drawn(40, 0.5)
    kept = np.flatnonzero((member == 0) | (np.arange(len(member)) < 20))
    options = make(tmp_path, member[kept], np.round(scores[kept], 1))
    report = privctl.audit_scores(**options, output=tmp_path / "a.report.json")
    ((outcome, reason),) = evidence_verdicts(tmp_path / "a.report.json")
    assert outcome is Outcome.CONSISTENT, reason
    assert reason.startswith(f"{len(report.evidence)} figures")


@pytest.mark.forged("it says that the scores have other columns")
def test_other_columns_than_the_file_has_are_refuted(tmp_path: Path) -> None:
    def changed(report: PrivacyReport, **columns: str) -> PrivacyReport:
        return replace(report, parameters={**report.parameters, "asked": {**report.parameters["asked"], **columns}})

    options = _parquet(tmp_path, *drawn(20, 0.5))
    report_path = tmp_path / "a.report.json"
    report = privctl.audit_scores(**options, output=report_path)
    write_report(report_path, changed(report, record_column="absent"))
    ((outcome, reason),) = evidence_verdicts(report_path)
    assert (outcome, reason[:34]) == (Outcome.REFUTED, "the file of scores is not what the")
