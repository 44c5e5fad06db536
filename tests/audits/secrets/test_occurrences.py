from __future__ import annotations

import pytest

from audits.secrets import occurrences
from audits.secrets.occurrences import OtherOccurrences, occurrence


@pytest.mark.parametrize(
    ("text", "value", "place"),
    [
        ("call 555 now", "555", (5, 8)),
        ("annual ann", "ann", (7, 10)),
        ("annual", "ann", (0, 3)),
        ("Anna", "anna", (0, 4)),
        ("anna then Anna", "Anna", (10, 14)),
        ("a.b@c.example, ok", "a.b@c.example", (0, 13)),
        ("axb@c", "a.b", None),
        ("nothing", "555", None),
    ],
)
def test_where_a_value_stands(text: str, value: str, place: tuple[int, int] | None) -> None:
    assert occurrence(text, value) == place


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_values_in_texts_of_others(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occurrences, "_BLOCK", block)
    found = OtherOccurrences({"ann": [0], "555": [1], "key": [2], "far": [0], "ab": [3]})
    for number, text in enumerate(["ann ann", "555 annual", "key ann", "x key5 a", "b"]):
        found.add(number, text)
    assert found.values() == {"ann"}, "annual and key5 are other words, and no value spans two texts"
