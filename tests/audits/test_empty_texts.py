"""Records without a text are left out of an audit and counted; they end none."""

from __future__ import annotations

from pathlib import Path

import pytest

import privctl
from privctl.domain.errors import InputError
from tests.audits.tiny import sentences, write_jsonl


def test_empty_texts_are_left_out_and_counted(llama: Path, tmp_path: Path) -> None:
    members = write_jsonl(tmp_path / "a.jsonl", ["", *sentences(24, 1, 8), " \n"])
    others = write_jsonl(tmp_path / "b.jsonl", [*sentences(24, 2, 8), ""])
    report = privctl.audit(
        llama, members=members, nonmembers=others, train=members, held_out=others, prefix_tokens=2, suffix_tokens=2,
        output=tmp_path / "r.report.json", log=tmp_path / "log.jsonl", device="cpu",
    )  # fmt: skip
    left_out = [(item.what, item.reason) for item in report.omissions]
    assert ("2 members", "of too few tokens for one to be predicted") in left_out
    assert ("1 nonmember", "of too few tokens for one to be predicted") in left_out
    assert any("of a.jsonl in extraction (line 1," in what and ", 26)" in what for what, _ in left_out)


def test_only_empty_texts_are_no_data(llama: Path, tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / name, ["", " "]) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(InputError, match="has no record of 4 tokens.* its longest has [0-3], so"):
        privctl.audit(
            llama, train=files[0], held_out=files[1], prefix_tokens=2, suffix_tokens=2, log=tmp_path / "log.jsonl"
        )
