"""Slips in the names of fields: the message names the field that was probably meant, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.data.columns import Columns, require_unit
from privctl.data.count import count_examples
from privctl.data.users import group_of
from privctl.domain.errors import InputError

RECORD = {"patient_id": "P1", "note": "seen today"}


@pytest.mark.parametrize(("slip", "meant"), [("notes", "'note'"), ("Note", "'note'"), ("text", ""), ("x" * 999, "")])
def test_a_field_of_the_text(tmp_path: Path, slip: str, meant: str) -> None:
    (path := tmp_path / "a.jsonl").write_text(json.dumps(RECORD))
    with pytest.raises(InputError) as caught:
        count_examples(path, columns=Columns(text=slip))
    assert str(caught.value).partition("; did you mean ")[2].rstrip("?") == meant


def test_a_field_of_users() -> None:
    with pytest.raises(InputError, match=r"lacks 'patient'; .*; did you mean 'patient_id'\?$"):
        group_of(RECORD, "patient", "line 1")


def test_a_column_of_users() -> None:
    with pytest.raises(InputError, match=r"did you mean 'patient_id'\?$"):
        require_unit(RECORD.keys(), "a.parquet", "fold(patient_ids)")


def test_long_and_many_names_are_not_compared(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text(json.dumps({"y" * 90_000: "", **{f"f{i}": "" for i in range(9000)}}))
    with pytest.raises(InputError, match="lacks 'f9999'"):
        count_examples(path, columns=Columns(text="f9999"))
