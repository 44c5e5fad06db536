"""A JSON array in a file of JSON lines, as `json.dump` of a list under the wrong suffix makes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.data.count import count_examples
from privctl.domain.errors import InputError

RECORDS = [{"text": "one"}, {"text": "two"}]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_suffix_to_give_it_is_named(tmp_path: Path, indent: int | None, mark: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(mark + json.dumps(RECORDS, indent=indent).encode())
    with pytest.raises(InputError, match=r"line 1 is .*one JSON array must end in \.json, so rename it"):
        count_examples(path)
    assert count_examples(path.rename(tmp_path / "a.json")) == 2


def test_other_faults_are_told_as_before(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": [\n')
    with pytest.raises(InputError, match=r"line 2 is not valid JSON .*expected an object such as"):
        count_examples(path)
