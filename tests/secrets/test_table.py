import gzip
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from privctl.domain.errors import InputError
from privctl.secrets.table import Secret, read_secrets, table_of, write_secrets

GOOD = '{"id": "a", "kind": "email", "value": "x@y.example", "records": [4, 1, 4]}'


def book(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "secrets.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    first = Secret(id="a", kind="email", records=np.array([1, 4]), value="x@ä.example", prior=0.01, posterior=0.5)
    second = Secret(id="b", kind="card", records=np.empty(0, np.int64), candidates=("1", "2"))
    stream = io.BytesIO()
    assert write_secrets(stream, [first, second]) == 2
    path = tmp_path / "secrets.jsonl.gz"
    path.write_bytes(gzip.compress(stream.getvalue()))
    found = list(read_secrets(path))
    for before, after in zip([first, second], found, strict=True):
        assert before.records.tolist() == after.records.tolist()
        for key in ("id", "kind", "value", "prior", "posterior", "candidates"):
            assert getattr(before, key) == getattr(after, key)


def test_records_rise_and_occur_once(tmp_path: Path) -> None:
    (secret,) = read_secrets(book(tmp_path, GOOD))
    assert secret.records.tolist() == [1, 4]


def test_tables_keep_the_order(tmp_path: Path) -> None:
    other = '{"id": "b", "kind": "word", "records": [], "prior": 0.1}'
    table = table_of(read_secrets(book(tmp_path, GOOD, other)))
    assert table.ids == ("a", "b")
    assert table.starts.tolist() == [0, 2, 2]
    assert table.records.tolist() == [1, 4]
    assert math.isnan(table.priors[0])
    assert table.priors[1] == 0.1


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("[1]", "is a list"),
        ("{", "not valid JSON"),
        ('{"id": "a", "kind": "k"}', "lacks 'records'"),
        ('{"id": "", "kind": "k", "records": [1]}', "empty 'id'"),
        ('{"id": "a\\u0007", "kind": "k", "records": [1]}', "unprintable characters"),
        ('{"id": 3, "kind": "k", "records": [1]}', "a number as 'id'"),
        ('{"id": "a", "kind": "k", "records": "1"}', "a string as 'records'"),
        ('{"id": "a", "kind": "k", "records": [-1]}', "-1 among its 'records'"),
        ('{"id": "a", "kind": "k", "records": [true]}', "True among its 'records'"),
        ('{"id": "a", "kind": "k", "records": [1e300]}', "1e+300 among its 'records'"),
        ('{"id": "a", "kind": "k", "records": [1], "prior": 1}', "1 as 'prior'"),
        ('{"id": "a", "kind": "k", "records": [1], "posterior": "x"}', "'x' as 'posterior'"),
        ('{"id": "a", "kind": "k", "records": [1], "candidates": "x"}', "a string as 'candidates'"),
        ('{"id": "a", "kind": "k", "records": [1], "other": 1}', "unknown key 'other'"),
        ('{"id": "a", "kind": "k", "records": [1], "value": "\\ud800"}', "an unpaired surrogate"),
    ],
)
def test_faults_name_the_line(tmp_path: Path, line: str, part: str) -> None:
    with pytest.raises(InputError, match="line 2") as fault:
        list(read_secrets(book(tmp_path, json.dumps(json.loads(GOOD)).replace('"a"', '"first"'), line)))
    assert part in str(fault.value)


def test_an_id_occurs_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a second time"):
        list(read_secrets(book(tmp_path, GOOD, GOOD)))


def test_an_empty_book_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no records"):
        list(read_secrets(book(tmp_path, "")))
