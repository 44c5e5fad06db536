"""Words with labels, answers and sets of labels in parquet and Arrow files, as `datasets` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privctl.data import arrow
from privctl.data.annotated import answers_of
from privctl.data.columns import Columns, HeadKind
from privctl.data.texts import read_texts
from privctl.domain.errors import InputError
from tests.hostile.test_messages import at_most

TOKENS, SPAN = Columns(problem=HeadKind.TOKENS), Columns(problem=HeadKind.SPAN)


def saved(path: Path, columns: dict[str, Any], **more: Any) -> Path:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, **more)
        return path
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_words_and_numbers_of_labels(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [[f"w{i}"] * (i % 5 + 1) for i in range(700)]
    labels = [[i % 3] * (i % 5 + 1) for i in range(700)]
    path = saved(
        tmp_path / f"a{suffix}",
        {
            "id": ["x"] * 700,
            "tokens": pa.array(words, pa.large_list(pa.string())),
            "ner_tags": pa.array(labels, pa.list_(pa.int64())),
        },
        **({"row_group_size": 300} if suffix == ".parquet" else {}),
    )
    stated = [json.dumps([str(number) for number in numbers]) for numbers in labels]
    expected = list(zip((" ".join(row) for row in words), stated, strict=True))
    assert [(record.text, record.label) for record in read_texts(path, columns=TOKENS)] == expected
    monkeypatch.setattr(arrow, "_DECODED", 4000)
    assert [(record.text, record.label) for record in read_texts(path, columns=TOKENS)] == expected, "a row at a time"


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_answers_as_squad_has_them(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"text": ["b"] * (i % 3), "answer_start": [2] * (i % 3)} for i in range(600)]
    columns = {"question": ["q"] * 600, "context": ["a b"] * 600, "answers": answers, "title": ["t"] * 600}
    path = saved(tmp_path / f"a{suffix}", columns, **({"row_group_size": 250} if suffix == ".parquet" else {}))
    for _ in range(2):
        found = [answers_of(record.label) for record in read_texts(path, columns=SPAN)]
        assert found == [[(2, "b")] * (i % 3) for i in range(600)]
        monkeypatch.setattr(arrow, "_DECODED", 4000)  # then a row at a time


def test_sets_of_labels(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.parquet", {"text": ["a", "b"], "label": [["x", "y"], []]})
    found = read_texts(path, labelled=True, columns=Columns(problem=HeadKind.SEVERAL))
    assert [record.label for record in found] == ['["x", "y"]', "[]"]


def test_a_row_without_answers_is_refused(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "a.parquet",
        {"question": ["q", "q"], "context": ["a", "a"], "answers": [{"text": ["a"], "answer_start": [0]}, None]},
    )
    with pytest.raises(InputError, match="row 2 has null as 'answers'"):
        read_texts(path, columns=SPAN)


def test_one_word_stored_once_for_many(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 100_000]))
    row = pa.ListArray.from_arrays(pa.array([0, 20_000], pa.int32()), words)
    for columns, of in (
        ({"tokens": row, "ner_tags": row}, TOKENS),
        (
            {
                "question": ["q"],
                "context": ["c"],
                "answers": pa.StructArray.from_arrays([row, row], names=["text", "answer_start"]),
            },
            SPAN,
        ),
    ):
        path = saved(tmp_path / "a.parquet", columns, compression="zstd")
        assert path.stat().st_size < 4000
        with at_most(200 << 20), pytest.raises(InputError, match="has a row of more than 64 MiB"):
            read_texts(path, columns=of)
