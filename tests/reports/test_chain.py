"""One walk up the chain of reports: order, repetition, loops, limits, and what is not followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.domain.report import ParentReport, PrivacyReport
from privctl.reports import chain
from privctl.reports.chain import ChainTooLongError, ReportFiles, Visit, walk
from privctl.reports.codec import encode
from privctl.storage.digest import file_digest


def write(folder: Path, name: str, *parents: str, digest: str | None = None) -> Path:
    """A report that names ``parents``, by their digests or by another."""
    report_path = folder / f"{name}.report.json"
    named = tuple(
        ParentReport(path=f"{parent}.report.json", digest=digest or file_digest(folder / f"{parent}.report.json"))
        for parent in parents
    )
    report_path.write_text(
        encode(PrivacyReport(step="audit", created="2026-01-01T00:00:00Z", versions={}, parents=named))
    )
    return report_path


def names(visits: list[Visit]) -> list[str]:
    return [visit.file.path.name.removesuffix(".report.json") for visit in visits]


@pytest.mark.forged("reports without content")
def test_a_report_is_read_once_however_often_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "root")
    child = write(tmp_path, "child", *["root"] * 9)
    read: list[str] = []
    real = chain.read_named_bytes
    monkeypatch.setattr(chain, "read_named_bytes", lambda path: (read.append(path.name), real(path))[1])
    files = ReportFiles()
    for _ in range(2):
        assert names(list(walk([child], files))) == ["child", "root"]
    assert sorted(read) == ["child.report.json", "root.report.json"]


@pytest.mark.forged("reports without content")
def test_a_child_comes_before_its_parents_and_a_shared_one_once(tmp_path: Path) -> None:
    write(tmp_path, "root")
    write(tmp_path, "left", "root")
    write(tmp_path, "right", "root")
    top = write(tmp_path, "top", "left", "right")
    visits = list(walk([top], ReportFiles()))
    assert names(visits) == ["top", "left", "root", "right"]
    assert [visit.depth for visit in visits] == [0, 1, 2, 1]
    assert all(visit.unchanged for visit in visits)
    assert (visits[3].child, visits[3].index) == (visits[0].file, 1)


@pytest.mark.forged("reports with wrong digests")
def test_two_digests_of_one_report_are_two_visits_and_one_is_a_change(tmp_path: Path) -> None:
    write(tmp_path, "root")
    write(tmp_path, "left", "root", digest="blake3:" + "0" * 64)
    top = write(tmp_path, "top", "left", "root")
    visits = list(walk([top], ReportFiles()))
    assert names(visits) == ["top", "left", "root", "root"]
    assert [visit.unchanged for visit in visits] == [True, True, False, True]
    assert [visit.revisited for visit in visits] == [False, False, False, True]
    kept = list(walk([top], ReportFiles(), follow=lambda visit: visit.unchanged))
    assert names(kept) == names(visits)  # a changed one is seen, and would not be followed


@pytest.mark.forged("reports that name each other")
def test_a_loop_is_visited_once_more_and_ends(tmp_path: Path) -> None:
    zeros = "blake3:" + "0" * 64
    (tmp_path / "b.report.json").write_text("{}")
    first = write(tmp_path, "a", "b", digest=zeros)
    write(tmp_path, "b", "a", digest=zeros)
    visits = list(walk([first], ReportFiles()))
    assert names(visits) == ["a", "b", "a"]
    assert [visit.loops for visit in visits] == [False, False, True]


@pytest.mark.forged("reports without content")
def test_a_limit_and_what_is_known_already(tmp_path: Path) -> None:
    write(tmp_path, "0")
    for number in range(1, 5):
        write(tmp_path, str(number), str(number - 1))
    steps = []
    with pytest.raises(ChainTooLongError, match="more than 3 reports"):
        for visit in walk([tmp_path / "4.report.json"], ReportFiles(), most=3):
            steps.append(visit)
    assert names(steps) == ["4", "3", "2"]
    known = {file_digest(tmp_path / "3.report.json")}
    assert names(list(walk([tmp_path / "4.report.json"], ReportFiles(), known=known.__contains__))) == ["4"]


@pytest.mark.forged("a file that is no report")
def test_what_is_missing_or_no_report_says_why(tmp_path: Path) -> None:
    (tmp_path / "odd.report.json").write_text("[]")
    files = ReportFiles()
    assert (files.at(tmp_path / "gone.report.json").digest, files.at(tmp_path / "gone.report.json").report) == (
        None,
        None,
    )
    odd = files.at(tmp_path / "odd.report.json")
    assert odd.digest is not None
    assert odd.report is None
    assert "not a privctl report" in odd.fault
