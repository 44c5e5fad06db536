from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from privctl.data.records import Record, read_records
from privctl.domain.errors import FileSystemError, InputError


def test_both_forms_with_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"text": "one", "id": 7}\n\n{"prompt": "two", "response": "three"}\n', encoding="utf-8")
    assert list(read_records(path)) == [Record(1, "one"), Record(3, "two\nthree")]


def test_gzip_is_read_as_plain(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}'))
    assert [record.text for record in read_records(path)] == ["one", "two"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="not a complete gzip file"):
        list(read_records(path))
    path.write_bytes(b'{"text": "plain"}')
    with pytest.raises(InputError, match="not a complete gzip file"):
        list(read_records(path))


def test_records_come_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\nbroken')
    source = read_records(path)
    assert next(source).text == "one"
    with pytest.raises(InputError, match="line 2"):
        next(source)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"text": "a"', r"line 2 is not valid JSON \(Expecting ',' delimiter at column 13\)"),
        (b"plain words", "line 2 is not valid JSON"),
        (b'["text"]', "line 2 is a list"),
        (b'"text"', "line 2 is a string"),
        (b"7", "line 2 is a number"),
        (b"null", "line 2 is null"),
        (b"{}", r"line 2 lacks 'text' \(it has no keys\)"),
        (b'{"txt": "a"}', r"line 2 lacks 'text' \(it has 'txt'\)"),
        (b'{"prompt": "a"}', "line 2 lacks 'response'"),
        (b'{"text": ""}', "line 2 has an empty 'text'"),
        (b'{"text": " \\n"}', "line 2 has an empty 'text'"),
        (b'{"text": 5}', "line 2 has a number as 'text'; expected a string"),
        (b'{"text": null}', "line 2 has null as 'text'"),
        (b'{"text": "a", "response": "b"}', "line 2 has both 'text' and"),
        (b'{"text": "\xff"}', "line 2 is not UTF-8"),
        (b'{"text": "\\ud800"}', "line 2 has an unpaired surrogate"),
        (b"[" * 100_000, "line 2 (holds a number or a nesting too large|is not valid JSON)"),
        (b'{"text": ' + b"9" * 5000 + b"}", "line 2 holds a number or a nesting too large"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: bytes, fault: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(InputError, match=fault) as caught:
        list(read_records(path))
    assert str(caught.value).startswith(f"{path} line 2 ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "packed"), [("a.jsonl", ".gz"), ("a.json", ".gz"), ("a.csv", ".gz")])
def test_a_compressed_file_without_its_suffix_is_named(tmp_path: Path, name: str, packed: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b'{"text": "fine"}\n'))
    with pytest.raises(InputError, match=f"is not text but gzip; give the file a name that ends in {packed}"):
        list(read_records(path))


def test_a_line_that_is_cut_off_is_named_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fi')
    with pytest.raises(InputError, match=r"line 1 is not valid JSON \(Unterminated string starting at column 10\)"):
        list(read_records(path))


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="holds no records"):
        list(read_records(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        list(read_records(tmp_path / "none.jsonl"))
    with pytest.raises((InputError, FileSystemError)):
        list(read_records(tmp_path))
