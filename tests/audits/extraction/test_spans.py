"""Spans of records in written text: all that a search of every window finds, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from audits.extraction import spans
from audits.extraction.spans import SpanIndex
from tests.few import few


def least_edits(window: list[int], text: list[int]) -> int:
    """The fewest edits from ``window`` to any stretch of ``text`` (Sellers 1980), as the recursion is written."""
    row = [0] * (len(text) + 1)
    for i, token in enumerate(window, start=1):
        after = [i]
        for j, other in enumerate(text, start=1):
            after.append(min(after[-1] + 1, row[j] + 1, row[j - 1] + (token != other)))
        row = after
    return min(row)


def edited(random: np.random.Generator, tokens: np.ndarray, edits: int, symbols: int) -> np.ndarray:
    found = tokens.tolist()
    for _ in range(edits):
        place, token = int(random.integers(len(found))), int(random.integers(symbols))
        kind = int(random.integers(3))
        found[place : place + (kind != 1)] = [] if kind == 2 else [token]
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize(("length", "edits"), few([(8, 0), (10, 1), (12, 2), (15, 4)], 0, 2))
def test_every_window_and_every_stretch_are_compared(length: int, edits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few symbols, so that pieces agree by chance and repeat; the search in small steps."""
    monkeypatch.setattr(spans, "_AT_ONCE", 61)
    random = np.random.default_rng(length)
    symbols = 4
    records = [random.integers(0, symbols, int(random.integers(4, 30))) for _ in range(24)]
    texts = []
    for i, record in enumerate(records):
        around = random.integers(0, symbols, (2, 5))
        texts.append(np.concatenate([around[0], edited(random, record, i % (2 * edits + 2), symbols), around[1]]))
    texts.append(np.zeros(0, dtype=np.int64))
    found = SpanIndex(texts, length, edits).search(records)
    near = set(zip(found.record.tolist(), found.text.tolist(), strict=True))
    sure = found.verbatim
    exact = set(zip(found.record[sure].tolist(), found.text[sure].tolist(), strict=True))
    missed = 0
    for r, record in enumerate(records):
        windows = [record[s : s + length].tolist() for s in range(len(record) - length + 1)]
        for t, text in enumerate(texts):
            fewest = min((least_edits(window, text.tolist()) for window in windows), default=edits + 1)
            assert ((r, t) in exact) == (fewest == 0) or len(set(record.tolist())) == 1
            assert ((r, t) in near) <= (fewest <= edits)
            # one token over and over is no piece to look for
            dull = len(set(record.tolist())) == 1
            missed += fewest <= edits and (r, t) not in near and not dull
    assert missed == 0
    assert len(near) > 10
    assert len(exact) >= 2
    for r, t, start, stop in zip(found.record, found.text, found.start, found.stop, strict=True):
        piece, text = records[r][start:stop].tolist(), texts[t].tolist()
        assert any(text[k : k + len(piece)] == piece for k in range(len(text)))


def test_one_token_over_and_over_costs_nothing() -> None:
    """Of 200 texts and records that repeat a token every pair of places agrees, and none says anything."""
    same = [np.full(300, 7, dtype=np.int64)] * 200
    assert len(SpanIndex(same, 20, 2).search(same).record) == 0
    text = np.concatenate([np.full(30, 7), np.arange(10, 40), np.full(30, 7)])
    found = SpanIndex([text], 20, 2).search([text[20:55]])
    assert found.verbatim.any()
    assert (found.start.min(), found.stop.max()) == (0, 35)


def test_colliding_hashes_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "window_hashes", lambda tokens, n: np.zeros(max(0, len(tokens) - n + 1), np.uint64))
    random = np.random.default_rng(0)
    texts, records = (list(random.integers(0, 50, (5, 30))) for _ in range(2))
    records[2][4:24] = texts[3][:20]
    found = SpanIndex(texts, 20, 1).search(records)
    assert set(zip(found.record.tolist(), found.text.tolist(), strict=True)) == {(2, 3)}


def test_nothing_to_search() -> None:
    row = np.arange(30)
    assert len(SpanIndex([], 8, 1).search([row]).record) == 0
    assert len(SpanIndex([row], 8, 1).search([]).record) == 0
    assert len(SpanIndex([row[:3]], 8, 1).search([row]).record) == 0
