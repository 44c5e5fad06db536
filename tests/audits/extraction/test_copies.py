from __future__ import annotations

import numpy as np
import pytest

from audits.extraction import copies
from audits.extraction.copies import CopyCounter, window_hashes
from tests.few import few


def brute(texts: list[np.ndarray], documents: list[np.ndarray]) -> list[int]:
    """Documents that hold each text, by looking everywhere."""

    def holds(document: np.ndarray, text: np.ndarray) -> bool:
        return any((document[i : i + len(text)] == text).all() for i in range(len(document) - len(text) + 1))

    return [sum(holds(document, text) for document in documents) for text in texts]


def corpus(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Documents over few tokens, so that near duplicates abound, and texts that occur, nearly occur or do not."""
    random = np.random.default_rng(seed)
    documents = [random.integers(0, 3, int(n)) for n in random.integers(0, 40, 200)]
    longer = [document for document in documents if len(document) >= 7]
    texts = [each[:7].copy() for each in longer[:30]] + [random.integers(0, 3, 7) for _ in range(20)]
    for i, text in enumerate(texts[:10]):
        text[i % 7] ^= 1
    return texts, documents


@pytest.mark.parametrize("seed", few(range(3), 0))
def test_counts_equal_brute_force(seed: int) -> None:
    texts, documents = corpus(seed)
    counter = CopyCounter(texts)
    for start in range(0, len(documents), 30):
        counter.add(documents[start : start + 30])
    assert counter.counts.tolist() == brute(texts, documents)
    assert counter.counts.max() > 0


def test_colliding_hashes_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, documents = corpus(7)
    monkeypatch.setattr(
        copies, "window_hashes", lambda tokens, n: np.zeros(max(0, len(tokens) - n + 1), dtype=np.uint64)
    )
    counter = CopyCounter(texts)
    counter.add(documents)
    assert counter.counts.tolist() == brute(texts, documents)


def test_no_window_crosses_from_one_document_to_the_next() -> None:
    counter = CopyCounter([np.array([1, 2, 3])])
    counter.add([np.array([9, 1]), np.array([2, 3]), np.array([1, 2, 3, 1, 2, 3])])
    assert counter.counts.tolist() == [1]


def test_windows_hash_alike_wherever_they_stand() -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, 5000)
    tokens[4000:4050] = tokens[17:67]
    hashes = window_hashes(tokens, 50)
    assert hashes[4000] == hashes[17]
    assert len(np.unique(hashes)) == len(hashes) - 1
    assert len(window_hashes(tokens[:10], 50)) == 0


def test_nothing_to_count() -> None:
    counter = CopyCounter([])
    counter.add([np.array([1, 2])])
    assert counter.counts.tolist() == []


@pytest.mark.parametrize("token", range(4))
def test_one_text_alone_whatever_its_hash(token: int) -> None:
    """Half of all hashes are too large for a signed number, which numpy 2.0 cannot look up in a table."""
    counter = CopyCounter([np.array([token, token])])
    counter.add([np.array([token, token, token]), np.array([7, 8, 9])])
    assert counter.counts.tolist() == [1]
