"""Records that a path would mean twice, files that repeat them, and folders that mean others than they seem to."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privctl.data.count import count_examples
from privctl.data.places import data_files
from privctl.data.texts import iter_texts
from privctl.domain.errors import InputError

LINE = '{"text": "a record"}\n'


def named_twice(folder: Path) -> Path:
    with pa.ipc.new_stream(str(folder / "data.arrow"), pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": ["a", "b"]}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}] * 2}))
    return folder


def packed_too(folder: Path) -> Path:
    (folder / "a.jsonl").write_text(LINE)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(LINE.encode()))
    return folder


def linked_too(folder: Path) -> Path:
    (folder / "a.jsonl").write_text(LINE)
    os.symlink("a.jsonl", folder / "b.jsonl")
    return folder / "*.jsonl"


@pytest.mark.parametrize("make", [named_twice, packed_too, linked_too])
def test_a_record_that_is_there_twice_would_count_as_two(make: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would count as two"):
        count_examples(make(tmp_path))


def test_a_text_beside_the_data_does_not_take_its_place(tmp_path: Path) -> None:
    inner = tmp_path / "data" / "train-00000-of-00001.parquet"
    inner.parent.mkdir()
    pq.write_table(pa.table({"text": ["a", "b"]}), inner)
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert data_files(tmp_path) == (inner,)
    (tmp_path / "LICENSE.txt").write_text("do as you like\n")
    with pytest.raises(InputError, match="LICENSE.txt"):
        data_files(tmp_path)
    assert data_files(tmp_path / "data") == (inner,)


@pytest.mark.parametrize("files", ["5", '"x"', "{}", "[5]", "[]"])
def test_a_state_of_another_shape_is_one_sentence(files: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(f'{{"_data_files": {files}}}')
    with pytest.raises(InputError, match="names no files beside it"):
        data_files(tmp_path)


def test_a_string_that_a_file_repeats_is_not_unpacked_for_many_rows_at_once(tmp_path: Path) -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0] * 110, pa.int32()), pa.array(["a" * (3 << 20)]))
    path = tmp_path / "a.parquet"
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pq.write_table(pa.table({"text": one}), path, **options)
    assert path.stat().st_size < 2000
    pool, most = pa.default_memory_pool(), 0
    before = pool.bytes_allocated()
    for _ in iter_texts(path):
        most = max(most, pool.bytes_allocated() - before)
    assert most < 300 << 20, "all rows at once would be 330 MiB"


@pytest.mark.parametrize(
    "text", ['[{"text": "a"} {"text": "b"}]', '[{"text": "a"},]', '[,{"text": "a"}]', '[{"text": "a"},,{"text": "b"}]']
)
def test_an_array_with_commas_out_of_place_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no valid JSON"):
        count_examples(path)
