"""Scores that another tool gave to records: the evidence of a membership audit, and no more than they can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from audits.record_scores.audit import run_record_scores
from audits.record_scores.table import ScoreColumns, read_record_scores
from privctl.cli import run
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.show.decision import conclusion
from privctl.show.gather.next_step import next_step
from verify.audits.consistency import faults


def drawn(count: int, shift: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    member = np.arange(2 * count) % 2
    return member, source.standard_normal(2 * count) + shift * member


def table(path: Path, member: Sequence[int] | np.ndarray, *scores: np.ndarray, names: str = "score") -> Path:
    rows = [",".join(map(str, (i, *row))) for i, row in enumerate(zip(member, *scores, strict=True))]
    path.write_text("\n".join([f"id,member,{names}", *rows]) + "\n")
    return path


def report_on(path: Path, columns: ScoreColumns | None = None) -> PrivacyReport:
    return run_record_scores([path], path.with_name("r.json"), columns=columns or ScoreColumns())


def test_the_area_is_that_of_another_library(tmp_path: Path) -> None:
    member, scores = drawn(300, 0.7)
    report = report_on(table(tmp_path / "s.csv", member, scores))
    area = report.evidence[0]
    assert area.estimate == pytest.approx(roc_auc_score(member, scores))
    assert area.lower is not None
    assert area.upper is not None
    assert area.lower < area.estimate < area.upper
    assert area.samples == {"members": 300, "nonmembers": 300}
    assert [item.quantity for item in report.evidence] == ["AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR"]
    assert report.verdicts[0].outcome is Outcome.REFUTED
    assert "no baseline without the model was run" in report.verdicts[0].reason
    assert list(faults(report)) == []


@pytest.mark.parametrize(
    ("count", "shift", "outcome"),
    [(4000, 0.0, Outcome.CONSISTENT), (40, 0.0, Outcome.INCONCLUSIVE), (4000, -0.5, Outcome.INCONCLUSIVE)],
)
def test_what_is_concluded_where_nothing_is_found(tmp_path: Path, count: int, shift: float, outcome: Outcome) -> None:
    report = report_on(table(tmp_path / "s.csv", *drawn(count, shift)))
    assert report.verdicts[0].outcome is outcome
    assert any("negate losses" in line for line in report.warnings) is (shift < 0)
    assert ("negate losses" in report.verdicts[0].reason) is (shift < 0)
    assert ("may be losses" in conclusion(report).sentence) is (shift < 0)
    assert ("negate the scores" in next_step(report, tmp_path / "s.audit.report.json").advice) is (shift < 0)
    assert "swapped" not in conclusion(report).sentence
    assert list(faults(report)) == []


def test_several_columns_hold_together(tmp_path: Path) -> None:
    member, weak = drawn(300, 0.0)
    _, strong = drawn(300, 2.0, seed=1)
    path = table(tmp_path / "s.csv", member, weak, strong, names="loss,rmia")
    report = report_on(path, ScoreColumns(scores=("loss", "rmia")))
    assert report.parameters["attack"] == ["column loss", "column rmia"]
    assert {item.method for item in report.evidence} == {"column loss", "column rmia"}
    assert {item.confidence for item in report.evidence} == {1 - 0.05 / 6}
    assert "column rmia" in report.verdicts[0].reason


def test_no_more_is_found_by_chance_than_is_allowed(tmp_path: Path) -> None:
    """At 95 %, at most 5 in 100 audits of scores that know nothing may find something; 10 of 50 are 1 in 5,000."""
    found = 0
    for seed in range(50):
        report = report_on(table(tmp_path / "s.csv", *drawn(150, 0.0, seed)))
        found += report.verdicts[0].outcome is Outcome.REFUTED
    assert found < 10


def test_json_lines_and_tabs_are_read_alike(tmp_path: Path) -> None:
    member, scores = drawn(5, 1.0)
    ours = read_record_scores([table(tmp_path / "s.csv", member, scores)], ScoreColumns())
    lines = [{"name": f"r{i}", "p": s, "in": bool(m)} for i, (m, s) in enumerate(zip(member, scores, strict=True))]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    named = read_record_scores([tmp_path / "s.jsonl"], ScoreColumns(record="name", member="in", scores=("p",)))
    text = (tmp_path / "s.csv").read_text()
    (tmp_path / "s.tsv").write_text("\ufeff" + text.replace(",", "\t").replace("\t1\t", "\tTRUE\t"))
    tabs = read_record_scores([tmp_path / "s.tsv"], ScoreColumns())
    for other, name in ((named, "p"), (tabs, "score")):
        assert (other.member == ours.member).all()
        assert (other.scores[name] == ours.scores["score"]).all()


FOUR = "id,score,member\na,1,1\nb,2,0\nc,3,1\nd,4,0\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "s.csv",
            "score,member\n1,1\n",
            "has no column 'id' in its first line, which names 'score', 'member'; name the column with --id-column, or "
            "add it with a number for each record, or give --models",
        ),
        ("s.jsonl", '{"score": 1, "member": 1}', "score, member, or add it with a number for each record"),
        ("s.csv", "id,score\n1,1\n", "has no column 'member' in its first line, which names 'id', 'score'; name"),
        ("s.csv", "id,score,score,member\n", "has 2 column 'score' in its first line"),
        ("s.csv", "", "has no column 'id'"),
        ("s.csv", FOUR + "a,5,1\n", "line 6 scores the record 'a' again, after line 2"),
        ("s.csv", FOUR + "e,nan,1\n", "line 6 has 'nan' as score; expected a finite number"),
        ("s.csv", FOUR + "e,1_0,1\n", "line 6 has '1_0' as score; expected a finite number"),
        ("s.csv", FOUR + "e,inf,1\n", "line 6 has 'inf' as score"),
        ("s.csv", FOUR + "e,high,1\n", "line 6 has 'high' as score"),
        ("s.csv", FOUR + "e,5,2\n", "line 6 has '2' as member; expected 1 or 0, true or false"),
        ("s.csv", FOUR + "e,5\n", "line 6 has no 'member'; each line needs id, score, member"),
        ("s.csv", "id,score,member\na,1,1\nb,2,1\nc,3,0\n", "has 1 non-member; at least 2 of each side are needed"),
        ("s.csv", "id,score,member\na,1,0\nb,2,1\nc,3,0\n", "has 1 member; at least 2 of each side are needed"),
        ("s.csv", "id,score,member\nb,2,1\nc,3,1\n", "has 0 non-members; at least 2 of each side are needed"),
        ("s.jsonl", '{"id": 1, "score": true, "member": 1}', "line 1 has True as score"),
        ("s.jsonl", '{"id": 1, "score": 1, "member": 1.5}', "line 1 has 1.5 as member"),
        ("s.jsonl", "[1]", "line 1 is not a JSON object"),
        ("s.jsonl", '{"id": 1', "line 1 is not valid JSON"),
        ("s.parquet", "x", "is not a complete parquet file"),
        ("s.npz", "x", "is not a kind of file that scores of records are read from; give a CSV or TSV file"),
        ("s.csv", 'id,score,member\n"a,1,1', "is not a CSV or TSV file"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_record_scores([path], ScoreColumns())
    assert says in str(caught.value)
    assert run(["audit", "scores", str(path)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("other", "warned"), [("\uff21", "60"), ("a", "60"), ("B", None)])
def test_names_that_differ_only_in_spelling_are_counted_and_told(
    tmp_path: Path, other: str, warned: str | None
) -> None:
    """Two spellings of one record would count it twice, as a member and as none."""
    path = tmp_path / "s.csv"
    rows = [f"{name}{i},{i + 3 * side},{side}" for i in range(30) for side, name in enumerate(("A", other))]
    path.write_text("\n".join(["id,score,member", *rows]) + "\n")
    warnings = [line for line in report_on(path).warnings if "Unicode form" in line]
    assert [line.split()[0] for line in warnings] == ([] if warned is None else [warned])


def test_one_column_has_one_use() -> None:
    with pytest.raises(CommandError, match="not all different"):
        ScoreColumns(scores=("member",))


def test_the_command_says_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "s.csv", *drawn(300, 2.0))
    assert run(["audit", "scores", str(path)]) == 0, "no claim was refuted"
    stdout = " ".join(capsys.readouterr().out.split())
    assert stdout.startswith("Do not release: an attacker shown a training record and another one tells which is which")
    assert "baselines without the model" in stdout
    report = read_report(tmp_path / "s.audit.report.json")
    assert [item.role for item in report.inputs] == ["scores"]
    assert run(["audit", "scores", str(path)]) == 2, "the report is there already"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--claim", "1,1e-5"], "of one model, a claim is tested by privctl audit membership --split"),
        (["--threshold", "1"], "scores of one model's records are judged at every threshold together"),
        (["--models", "--id-column", "x"], "--id-column is for scores of records; remove it, or --models"),
        (["-o", "s.csv", "-f"], "is an input of this audit; choose another --output"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text(FOUR)
    assert run(["audit", "scores", "s.csv", *words]) == 2
    assert says in capsys.readouterr().err
    assert Path("s.csv").read_text() == FOUR


def test_scores_of_many_models_are_judged_as_from_scores_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"with": [3.0] * 500, "without": [0.0] * 500}))
    claim = ["--claim", "2,1e-5"]
    assert run(["audit", "--from-scores", str(path), *claim]) == 1
    old, stdout = read_report(tmp_path / "s.audit.report.json"), capsys.readouterr().out
    assert run(["audit", "scores", str(path), "--models", *claim, "-f"]) == 1
    new = read_report(tmp_path / "s.audit.report.json")
    assert replace(new, created=old.created) == old
    assert capsys.readouterr().out == stdout


def test_an_audit_of_a_model_still_needs_its_baselines(tmp_path: Path) -> None:
    report = report_on(table(tmp_path / "s.csv", *drawn(300, 2.0)))
    model = Artifact(role="model", path="m.safetensors", digest="blake3:" + 64 * "0", bytes=1)
    tied = list(faults(replace(report, inputs=(model, *report.inputs))))
    assert any("does not state the assumption 'scores of the model'" in line for line in tied)
    renamed = tuple(replace(item, method="loss") for item in report.evidence)
    parameters = {**report.parameters, "attack": ["loss"]}
    assert any(
        "baseline is missing" in line for line in faults(replace(report, evidence=renamed, parameters=parameters))
    )
