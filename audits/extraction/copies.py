"""Counts the documents that contain a text, in one pass over all token ids.

A string is k-eidetic memorized if it can be extracted and occurs in at most k training documents (Carlini et al. 2021).
Candidates are found by a rolling 64-bit hash and then compared token by token, so hash collisions do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BASE = 0x9E3779B97F4A7C15  # odd, hence with an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)
#: log2 of the size of the table that quickly rejects most windows.
_BITS = 22


class CopyCounter:
    """Counts the documents that contain each of some ``texts``, all of the same length in tokens."""

    def __init__(self, texts: Sequence[NDArray[np.int64]]) -> None:
        self._number: dict[bytes, int] = {}
        for text in texts:
            self._number.setdefault(text.tobytes(), len(self._number))
        self._texts = [text.tobytes() for text in texts]
        self._length = len(texts[0]) if texts else 0
        self._documents = np.zeros(len(self._number), dtype=np.int64)
        hashes = [window_hashes(np.frombuffer(text, dtype=np.int64), self._length) for text in self._number]
        self._hashes = np.unique(np.concatenate(hashes)) if hashes else np.zeros(0, dtype=np.uint64)
        self._maybe = np.zeros(1 << _BITS, dtype=np.bool_)
        self._maybe[self._hashes >> np.uint64(64 - _BITS)] = True

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of documents so far that contain each of ``texts``, in their order."""
        return self._documents[[self._number[text] for text in self._texts]]

    def add(self, documents: Sequence[NDArray[np.int64]]) -> None:
        """Count further ``documents``; a document that contains a text twice counts once."""
        longer = [document for document in documents if len(document) >= self._length]
        if not self._texts or not longer:
            return
        tokens = np.concatenate(longer)
        document = np.repeat(np.arange(len(longer)), [len(ids) for ids in longer])
        hashes = window_hashes(tokens, self._length)
        inside = document[: len(hashes)] == document[self._length - 1 :]
        indices = np.flatnonzero(inside & self._maybe[hashes >> np.uint64(64 - _BITS)])
        # By sorting, as the table that numpy would otherwise consider overflows for 64-bit numbers in numpy 2.0.
        indices = indices[np.isin(hashes[indices], self._hashes, kind="sort")]
        pairs = {(int(document[i]), self._number.get(tokens[i : i + self._length].tobytes())) for i in indices}
        for _, number in pairs:
            if number is not None:
                self._documents[number] += 1


def window_hashes(tokens: NDArray[Any], length: int) -> NDArray[np.uint64]:
    """Hashes [tokens - length + 1] of every window of ``length`` tokens (Karp and Rabin 1987, modulo 2^64).

    With m the mixed ids and b odd, the window at i has sum_j m[i + j] b^j: a difference of two prefix sums over
    powers of b, times the inverse of b^i.
    """
    if len(tokens) < length:
        return np.zeros(0, dtype=np.uint64)
    sums = np.zeros(len(tokens) + 1, dtype=np.uint64)
    np.cumsum(_mix(tokens) * _powers(_BASE, len(tokens)), out=sums[1:])
    return (sums[length:] - sums[:-length]) * _powers(_INVERSE, len(tokens) - length + 1)


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


def _mix(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """Map ids to 64 well-mixed bits (the SplitMix64 finalizer): small numbers alone would hash badly."""
    x = tokens.astype(np.uint64) + np.uint64(_BASE)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
