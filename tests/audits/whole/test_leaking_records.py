"""Which training records leak most: by line, never their text, for their owner alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from audits.whole.leaking_records import leaking_records
from privctl.cli import run
from privctl.show.text.leaking import leaking_table
from tests.audits.tiny import save_model, sentences, write_jsonl

MEMBERS, TRAIN = Path("members.jsonl"), Path("train.jsonl")
#: Two members, on lines 4 and 9, among four non-members; "b" leaves the second one out and tells less than "a".
SCORED = {
    "member": np.array([True, False, False, True, False, False]),
    "line": np.array([4, 1, 2, 9, 3, 4]),
    "score.a": np.array([-1.0, -2.0, -1.0, -0.30001, -4.0, -5.0]),
    "score.b": np.array([-1.0, 0.0, 0.0, np.nan, -3.0, -4.0]),
    "score.blind": np.array([9.0, 0.0, 0.0, 9.0, 0.0, 0.0]),
}
EXTRACTED = {
    "extraction.train": np.array([True, True, True, False]),
    "extraction.line": np.array([4, 5, 9, 9]),
    "extraction.greedy": np.array([True, True, False, True]),
}


def test_scores_and_ranks_among_the_nonmembers() -> None:
    first, second = leaking_records(SCORED, MEMBERS, None)
    assert (first.line, second.line) == (9, 4)
    assert first.scores == {"a": round(-0.30001 * 2**9) / 2**9}, "8 significant bits, and no attack that left it out"
    assert first.nonmembers_as_high == {"a": 0.0}
    assert second.nonmembers_as_high == {"a": 0.25, "b": 0.5}, "a tie counts"
    assert list(second.scores) == ["a", "b"], "what tells most comes first"
    assert first.extracted is second.extracted is None


def test_what_comes_out_word_for_word_is_first() -> None:
    found = leaking_records({**SCORED, **EXTRACTED}, MEMBERS, Path(".") / MEMBERS)
    assert [(record.line, record.extracted) for record in found] == [(4, True), (5, True), (9, False)]
    apart = leaking_records({**SCORED, **EXTRACTED}, MEMBERS, TRAIN)
    assert [(record.file, record.line, record.extracted) for record in apart] == [
        ("train.jsonl", 4, True), ("train.jsonl", 5, True),
        ("members.jsonl", 9, None), ("members.jsonl", 4, None), ("train.jsonl", 9, False),
    ]  # fmt: skip
    assert leaking_records({}, None, None) == ()


def test_how_many_would_stand_out_without_a_leak() -> None:
    """Shares of at most 0.1 are a tenth of those of 60 times 200 members, and shares of at most 0.01 a hundredth."""
    shares = []
    for seed in range(60):
        arrays = {
            "member": np.arange(500) < 200,
            "line": np.arange(500),
            "score.a": np.random.default_rng(seed).normal(size=500),
        }
        found = leaking_records(arrays, MEMBERS, None)
        shares += [record.nonmembers_as_high["a"] for record in found]
    assert np.mean(np.array(shares) <= 0.1) == pytest.approx(0.1, abs=0.02)
    assert np.mean(np.array(shares) <= 0.01) == pytest.approx(0.01, abs=0.006)
    text = " ".join(leaking_table(found, verbose=True).split())
    assert (
        "Without any leak about one in ten would have a share of at most 0.1, one in a hundred of at most 0.01" in text
    )


@pytest.mark.parametrize("others", [3, 20])
def test_with_few_nonmembers_more_stand_out_without_a_leak(others: int) -> None:
    """A share of 0 is then far more common than one in a hundred: one in as many as there are others, and one more."""
    shares = []
    for seed in range(60):
        size = 200 + others
        scores = np.random.default_rng(seed).normal(size=size)
        arrays = {"member": np.arange(size) < 200, "line": np.arange(size), "score.a": scores}
        found = leaking_records(arrays, MEMBERS, None)
        shares += [record.nonmembers_as_high["a"] for record in found]
    assert np.mean(np.array(shares) <= 0.01) == pytest.approx(1 / (others + 1), abs=0.03)
    assert "The record that leaks most, with its scores" in " ".join(leaking_table(found[:1], verbose=True).split())
    assert "with n non-members, one in n + 1 has a share of 0 by chance" in " ".join(
        leaking_table(found, verbose=True).split()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "members.jsonl", sentences(30, seed=1))
    write_jsonl(tmp_path / "nonmembers.jsonl", sentences(40, seed=2))
    save_model(tmp_path / "model")
    return tmp_path


def audit(folder: Path, *more: str) -> int:
    sides = ["--members", str(folder / "members.jsonl"), "--nonmembers", str(folder / "nonmembers.jsonl")]
    return run(["audit", str(folder / "model"), *sides, "--device", "cpu", "--attack", "loss", *more])


def test_the_file_is_its_owners_alone_and_in_no_report(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    leaks = folder / "leaks.jsonl"
    extraction = ["--train", str(folder / "members.jsonl"), "--prefix-tokens", "2", "--suffix-tokens", "2"]
    old = os.umask(0)
    try:
        assert audit(folder, "--leaks", str(leaks), *extraction) == 0
    finally:
        os.umask(old)
    assert leaks.stat().st_mode & 0o777 == 0o600
    records = [json.loads(line) for line in leaks.read_text().splitlines()]
    assert sorted(record["line"] for record in records) == list(range(1, 31))
    assert {record["file"] for record in records} == {"members.jsonl"}
    fields = {"file", "line", "extracted", "scores", "nonmembers_as_high", "reasons"}
    assert all(record.keys() == fields for record in records)
    assert any(record["extracted"] is not None for record in records)
    assert f"and {leaks}" in capfd.readouterr().err
    for other in folder.iterdir():
        if other.is_file() and other != leaks:
            assert b"leaks.jsonl" not in other.read_bytes(), other.name
    assert not any(word in leaks.read_text() for word in sentences(30, seed=1)[0].split() if len(word) > 2)


def test_ten_are_listed_when_asked(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit(folder, "-q") == 0
    assert "members.jsonl  " not in capfd.readouterr().out
    assert audit(folder, "-q", "-f", "-v") == 0
    out = capfd.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.startswith("members.jsonl ")]
    assert len(rows) == 10
    assert "The 10 records that leak most" in out
    shares = [float(row[-1]) for row in rows]
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("members.jsonl", "exists; give --force to replace it, or choose another --leaks", 2),
        ("pipe", "is not a regular file", 2),
        ("none/leaks.jsonl", "is not a folder to write leaks.jsonl into", 2),
    ],
)
def test_places_that_are_refused(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str, message: str, code: int
) -> None:
    os.mkfifo(folder / "pipe")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert audit(folder, "--leaks", str(folder / name)) == code
    assert message in capfd.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["members.jsonl", "model.audit.report.json", "model.audits.jsonl"])
def test_other_files_of_the_audit_are_kept_even_by_force(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    before = (folder / "members.jsonl").read_bytes()
    assert audit(folder, "-f", "--leaks", str(folder / name)) == 2
    assert "choose another --leaks" in capfd.readouterr().err
    assert (folder / "members.jsonl").read_bytes() == before
    assert not (folder / "model.audit.report.json").exists()


def test_it_needs_records(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    canaries = ["--canaries", str(folder / "c.json")]
    assert run(["audit", str(folder / "model"), *canaries, "--leaks", str(folder / "x.jsonl")]) == 2
    assert "--leaks lists the records of --members and --train" in capfd.readouterr().err
