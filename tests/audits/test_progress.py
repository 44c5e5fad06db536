"""An audit shows its progress at every stage whose time grows with the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import privctl
from audits.scores import subject
from audits.scores.subject import encode_records, load_subject
from privctl.data.records import Record
from privctl.domain.progress import Advance
from tests.audits.tiny import save_model, sentences, write_jsonl

if TYPE_CHECKING:
    import pytest


class Shown:
    """A ``Progress`` that keeps each label with its total and the work reported."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, float, float]] = []

    @contextmanager
    def __call__(self, label: str, total: float, unit: str) -> Iterator[Advance]:
        done: list[float] = []
        yield done.append
        self.stages.append((label, total, sum(done)))


def test_every_stage_of_an_audit_is_shown(tmp_path: Path) -> None:
    members = write_jsonl(tmp_path / "members.jsonl", sentences(40, seed=1))
    nonmembers = write_jsonl(tmp_path / "others.jsonl", sentences(30, seed=2))
    model, shown = save_model(tmp_path / "model"), Shown()
    reference = save_model(tmp_path / "reference", seed=1)
    privctl.audit(
        model, members=members, nonmembers=nonmembers, train=members, held_out=nonmembers, reference=reference,
        suffix_tokens=2, prefix_tokens=2, device="cpu", progress=shown,
    )  # fmt: skip
    of_extraction = ("asking the reference", "continuing", "extracting", "optimizing")
    labels = [label for label, *_ in shown.stages if not label.startswith(of_extraction)]
    assert labels == [
        "reading members.jsonl", "reading others.jsonl", "tokenizing", "tokenizing", "scoring the reference",
        "reading members.jsonl", "reading others.jsonl", "counting copies", "scoring", "judging",
        "comparing the records alone",
    ]  # fmt: skip
    assert all(done == total > 0 for _, total, done in shown.stages)


def test_records_are_encoded_in_groups_as_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(i, text) for i, text in enumerate(sentences(30, seed=1, longest=90), start=1)]
    audited, shown = load_subject(save_model(tmp_path / "model"), device="cpu"), Shown()
    whole = audited.rows(records)
    monkeypatch.setattr(subject, "_RECORDS", 7)
    monkeypatch.setattr(subject, "_CHARACTERS", 400)
    found = encode_records(audited, records, shown)
    assert [row.tolist() for row in found.rows] == [row.tolist() for row in whole.rows]
    assert found.truncated.tolist() == whole.truncated.tolist()
    assert any(found.truncated)
    assert shown.stages == [("tokenizing", 30, 30)]
    assert encode_records(audited, []).truncated.tolist() == []
