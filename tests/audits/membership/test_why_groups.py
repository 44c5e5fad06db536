"""Why groups of members stand out: facts of the data, none of them of most groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.why_groups import why_groups_exposed
from privctl.cli import run
from privctl.data.records import Record
from privctl.domain.leaking import LeakingRecord, Reason, Why
from privctl.show.text.leaking import effect_of_removal
from tests.audits.split.users import drawn_users
from tests.audits.tiny import sentences

if TYPE_CHECKING:
    import pytest


def records(first: int, count: int, text: str = "", label: str | None = "usual") -> list[Record]:
    """Of the digits of their lines, unless all have one ``text``."""
    return [Record(line, text or " ".join(f"{line:04}"), label) for line in range(first, first + count)]


def test_what_stands_out_of_a_group() -> None:
    """Of 100 groups with three records each, and six with one thing of their own."""
    groups = {i: records(i, 3) for i in range(0, 1000, 10)}
    groups[2000] = records(2000, 30)
    groups[2100] = [*records(2100, 2), *records(2102, 2, "0 0 1 1 1 0")]
    groups[2200] = [*records(2200, 1), *records(2210, 2, "1 1 1 1 1 1")]
    groups[2300] = [*records(2300, 2), *records(2310, 1, "1 1 1 1 1 1")]
    groups[2400] = records(2400, 1, "qua quae quod 1")
    groups[2500] = [*records(2500, 2), *records(2510, 1, label="odd")]
    found = {
        line: {reason.why: reason.text for reason in reasons} for line, reasons in why_groups_exposed(groups).items()
    }
    assert found == {
        2000: {Why.MANY_RECORDS: "30 records, where half of the groups have 3 at most"},
        2100: {Why.COPIES: "1 of its 4 records repeat others of it"},
        2200: {
            Why.COPIES: "1 of its 3 records repeat others of it",
            Why.SHARED: "2 of its 3 records are in other groups too",
        },
        2300: {Why.SHARED: "1 of its 3 records are in other groups too"},
        2400: {Why.RARE_WORDS: "3 of its 4 words are in no other group"},
        2500: {Why.RARE_LABEL: "1 of its 3 records have a label that few groups have, one of them 1 of 106"},
    }
    alike = {i: records(i, 3) for i in range(0, 1000, 10)}
    hard = why_groups_exposed(alike, np.where(np.arange(100) == 7, -9.0, -1.0))
    assert {line: [reason.why for reason in reasons] for line, reasons in hard.items()} == {70: [Why.HARD]}
    assert not why_groups_exposed({})


def leaking(line: int, as_high: float, *why: Why) -> LeakingRecord:
    reasons = tuple(Reason(why=reason, text="") for reason in why)
    return LeakingRecord(
        file="m", line=line, extracted=None, scores={"loss": 0.0}, nonmembers_as_high={"loss": as_high},
        reasons=reasons, records=3,
    )  # fmt: skip


def test_what_would_be_seen_without_groups_that_stand_out() -> None:
    groups = [leaking(1, 0.0, Why.COPIES, Why.MANY_RECORDS), leaking(2, 0.1, Why.MANY_RECORDS), leaking(3, 0.5)]
    rows = [line.split() for line in effect_of_removal(groups).splitlines()]
    assert ["copies", "1", "1", "100", "%", "0.7", "0", "%"] in rows
    assert ["many", "records", "2", "0.95", "50", "%", "0.5", "0", "%"] in rows
    assert "for all, its AUC is 0.8." in " ".join(effect_of_removal(groups).split())
    assert effect_of_removal(groups[2:]) == "", "none stands out"
    assert effect_of_removal(groups[:1]) == "", "nothing is left"


def test_an_audit_of_users_says_why_in_the_private_file(
    tmp_path: Path, llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = drawn_users(tmp_path, 63, sentences(400, 3))
    leaks, report = tmp_path / "leaks.jsonl", tmp_path / "a.report.json"
    words = ["--attack", "loss", "-o", str(report), "--log", str(tmp_path / "log"), "--device", "cpu"]
    call = ["audit", "membership", str(llama), "--split", str(folder), *words]
    assert run([*call, "--leaks", str(leaks), "--verbose"]) == 0
    rows = [json.loads(line) for line in leaks.read_text().splitlines()]
    users = [json.loads(line)["user"] for line in (folder / "members.jsonl").read_text().splitlines()]
    assert sorted(row["records"] for row in rows) == sorted(users.count(user) for user in set(users))
    assert all(row["records"] == users.count(users[row["line"] - 1]) for row in rows)
    many = {row["records"] for row in rows if any(reason["why"] == "many records" for reason in row["reasons"])}
    assert max(row["records"] for row in rows) in many
    assert 1 not in many
    assert leaks.stat().st_mode & 0o777 == 0o600
    assert not {user for user in users if f'"{user}"' in leaks.read_text()}
    out = " ".join(capfd.readouterr().out.split())
    assert "file line records word" in out
    assert "10 groups that leak most" in out
    assert "reasons" not in report.read_text()
