"""Scores of records of a split of users: users are what is counted and bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privctl
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from tests.audits.split.users import SIZES, drawn_users
from verify.audits.consistency import faults

USERS = 90


def scored(split: Path, *, shift: float = 0.0, by_user: float = 0.0, without: str = "") -> Path:
    """Scores of all records, of which members' are higher by ``shift``; what users share varies by ``by_user``."""
    source = np.random.default_rng(7)
    of_user: dict[str, float] = {}
    rows = ["id,member,score"]
    for side in ("members", "nonmembers"):
        for number, line in enumerate((split / f"{side}.jsonl").read_text().splitlines(), start=1):
            own = of_user.setdefault(line.rpartition('"user"')[2], by_user * source.standard_normal())
            value = own + source.standard_normal() + shift * (side == "members")
            if without != f"{side}:{number}":
                rows.append(f"{side}:{number},{int(side == 'members')},{value!r}")
    path = split.parent / "s.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def audited(split: Path, scores: Path) -> PrivacyReport:
    return privctl.audit_scores(scores, split=split / "manifest.json", force=True)


def epsilons(report: PrivacyReport) -> list[Evidence]:
    return [item for item in report.evidence if item.quantity.startswith("epsilon of a group")]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    return drawn_users(tmp_path, USERS)


def test_users_are_counted_and_verify_makes_their_scores_again(split: Path) -> None:
    report = audited(split, scored(split, shift=1.5))
    asked = report.parameters["asked"]
    assert (report.parameters["group_by"], asked["group_by"], asked["columns"]) == ("user", "user", ["score"])
    assert report.parameters["attack"] == ["column score", "column score-top"]
    assert sum(report.evidence[0].samples.values()) == USERS
    assert sum(report.parameters["grouped_records"].values()) == USERS // len(SIZES) * sum(SIZES)
    assert {item.details["group_records"] for item in epsilons(report)} == {max(SIZES)}
    assert epsilons(report)[0].lower > 0.5  # type: ignore[operator]
    assert report.verdicts[0].outcome is Outcome.REFUTED
    assert list(faults(report)) == []
    found = privctl.verify(split.parent / "s.audit.report.json")
    assert found.exit_code is ExitCode.OK
    reasons = {verdict.subject: verdict.reason for verdict in found.verdicts}
    assert reasons["evidence"].startswith(f"{len(report.evidence)} figures are what the scores in the file give")
    assert "drawn split" in reasons
    assert "audited groups" in reasons


def test_what_users_share_is_no_trace_of_membership(split: Path) -> None:
    """Planted: counted by records, users whose records score alike would be told apart far too often."""
    report = audited(split, scored(split, by_user=3.0))
    assert report.verdicts[0].outcome is not Outcome.REFUTED
    assert all(item.lower == 0 for item in epsilons(report))


def test_a_record_without_a_score_leaves_no_bound(split: Path) -> None:
    report = audited(split, scored(split, shift=1.5, without="members:2"))
    assert {item.lower for item in epsilons(report)} == {None}
    assert all("1 record of the split's groups have no score" in item.reason for item in epsilons(report))
    assert privctl.verify(split.parent / "s.audit.report.json").exit_code is ExitCode.OK


def test_records_of_another_split_and_names_that_are_taken_are_refused(split: Path) -> None:
    scores = scored(split)
    text = scores.read_text()
    scores.write_text(text.replace("members:1,", "members:99999,", 1))
    with pytest.raises(InputError, match="the record 'members:99999' is none of"):
        audited(split, scores)
    lines = text.splitlines()
    scores.write_text("\n".join([lines[0], *(f"{line.rpartition(',')[0]},1e308" for line in lines[1:])]) + "\n")
    with pytest.raises(InputError, match="has scores above 1e\\+150"):
        audited(split, scores)
    scores.write_text("\n".join([f"{lines[0]},score-top", *(f"{line},1" for line in lines[1:])]) + "\n")
    with pytest.raises(CommandError, match="is named as the highest scores of a group"):
        privctl.audit_scores(scores, score_column=("score", "score-top"), split=split / "manifest.json")
