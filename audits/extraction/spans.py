"""Finds spans of records in what a model wrote, exact and approximate, in one pass over the records.

A span of L tokens with at most e edits contains one of e + 1 pieces of L / (e + 1) tokens unchanged (Wu and Manber
1992, "Fast text searching allowing errors"). So the hashes of all such pieces of the written text are sorted once, the
records are streamed, and every common piece is extended in both directions as far as the edits allow (Landau and
Vishkin 1989, "Fast parallel and serial approximate string matching"). Memory grows with what was written, not with the
records. Hash matches are verified token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction.copies import window_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: log2 of the size of the table that quickly rejects most pieces.
_BITS = 22
#: The number of pairs of equal pieces extended at once.
_AT_ONCE = 1 << 15
#: A position that is less than any other.
_NEVER = -(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans found, all of shape [spans]; a record and a text may have several.

    ``record`` and ``text`` count from 0. The record's tokens from ``start`` to ``stop`` (exclusive) occur in the text
    word for word. If ``verbatim``, they are long enough for a span; otherwise they are part of a span with edits.
    """

    record: NDArray[np.int64]
    text: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    verbatim: NDArray[np.bool_]


class SpanIndex:
    """Finds spans of at least ``length`` tokens of records in ``texts``, with at most ``edits`` edits."""

    def __init__(self, texts: Sequence[NDArray[np.int64]], length: int, edits: int) -> None:
        self._length, self._edits = length, edits
        self._piece = length // (edits + 1)
        self._tokens, self._owner, self._ends = _concatenated(texts)
        hashes, places = _pieces(self._tokens, self._owner, self._piece)
        self._constant = _repeated(self._tokens, self._piece)
        places = places[~self._constant[places]]
        order = np.argsort(hashes[places], kind="stable")
        self._places = places[order]
        self._hashes = hashes[self._places]
        self._maybe = np.zeros(1 << _BITS, dtype=np.bool_)
        self._maybe[self._hashes >> np.uint64(64 - _BITS)] = True

    def search(self, records: Sequence[NDArray[np.int64]]) -> Spans:
        """All spans of ``records`` in the texts. Pieces that repeat a single token do not start a search."""
        tokens, owner, ends = _concatenated(records)
        hashes, places = _pieces(tokens, owner, self._piece)
        places = places[self._maybe[hashes[places] >> np.uint64(64 - _BITS)]]
        matches = [
            self._extended(tokens, owner, ends, i, j) for i, j in self._pairs(hashes[places], places, tokens, owner)
        ]
        names = ("record", "text", "start", "stop", "verbatim")
        empty = np.zeros(0, dtype=np.int64)
        parts = {name: np.concatenate([empty, *(getattr(spans, name) for spans in matches)]) for name in names}
        return Spans(**{**parts, "verbatim": parts["verbatim"].astype(np.bool_)})

    def _pairs(
        self,
        hashes: NDArray[np.uint64],
        indices: NDArray[np.int64],
        tokens: NDArray[np.int64],
        owner: NDArray[np.int64],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Positions in texts and records where the same piece starts, unless it extends one token to the left."""
        first = np.searchsorted(self._hashes, hashes, side="left")
        counts = np.searchsorted(self._hashes, hashes, side="right") - first
        total = np.cumsum(counts)
        for start in range(0, int(total[-1]) if len(total) else 0, _AT_ONCE):
            flat = np.arange(start, min(start + _AT_ONCE, int(total[-1])))
            which = np.searchsorted(total, flat, side="right")
            i, j = self._places[first[which] + flat - (total[which] - counts[which])], indices[which]
            before_i, before_j = np.maximum(i - 1, 0), np.maximum(j - 1, 0)
            same = (i > 0) & (j > 0) & (self._tokens[before_i] == tokens[before_j])
            same &= (self._owner[before_i] == self._owner[i]) & (owner[before_j] == owner[j])
            fresh = ~(same & ~self._constant[before_i])
            if fresh.any():
                yield i[fresh], j[fresh]

    def _extended(
        self,
        tokens: NDArray[np.int64],
        owner: NDArray[np.int64],
        ends: NDArray[np.int64],
        i: NDArray[np.int64],
        j: NDArray[np.int64],
    ) -> Spans:
        """The pairs of equal pieces at ``i`` in the texts and ``j`` in the records that are part of a span."""
        text, record = self._owner[i], owner[j]
        begins, starts = np.append(0, self._ends)[text], np.append(0, ends)[record]
        right = _reach(self._tokens, i, tokens, j, (self._ends[text] - i, ends[record] - j), 1, self._edits)
        left = _reach(self._tokens, i - 1, tokens, j - 1, (i - begins, j - starts), -1, self._edits)
        most = np.max([left[k] + right[self._edits - k] for k in range(self._edits + 1)], axis=0)
        verbatim = left[0] + right[0] >= self._length
        # after a hash collision the common piece is shorter
        kept = np.flatnonzero((most >= self._length) & (left[0] + right[0] >= self._piece))
        return Spans(
            record=record[kept],
            text=text[kept],
            start=(j - left[0] - starts)[kept],
            stop=(j + right[0] - starts)[kept],
            verbatim=verbatim[kept],
        )


def _reach(
    a: NDArray[np.int64],
    i: NDArray[np.int64],
    b: NDArray[np.int64],
    j: NDArray[np.int64],
    room: tuple[NDArray[np.int64], NDArray[np.int64]],
    step: int,
    edits: int,
) -> list[NDArray[np.int64]]:
    """How many tokens [pairs] of ``b`` from ``j`` match ``a`` from ``i`` in direction ``step``, with edits.

    Entry k of the list allows up to k edits; ``room`` holds the tokens available in ``a`` and in ``b``. The furthest
    reach on each of the 2k + 1 diagonals within k edits is tracked.
    """
    of_a, of_b = room
    furthest = {0: _agree(a, i, b, j, np.minimum(of_a, of_b), step)}
    reached = [furthest[0]]
    never = np.full(len(i), _NEVER)
    for k in range(1, edits + 1):
        after = {}
        for d in range(-k, k + 1):  # diagonal d: d more tokens of a than of b
            replaced, added, left_out = (furthest.get(d + shift, never) for shift in (0, -1, 1))
            y = np.maximum(np.maximum(replaced + 1, added), left_out + 1)
            y = np.minimum(y, np.minimum(of_b, of_a - d))
            y = np.where((y < 0) | (y + d < 0), _NEVER, y)
            at = np.maximum(y, 0)
            most = np.where(y < 0, 0, np.minimum(of_b - at, of_a - at - d))
            after[d] = y + _agree(a, i + step * (at + d), b, j + step * at, most, step)
        furthest = after
        reached.append(np.maximum(reached[-1], np.max(list(furthest.values()), axis=0)))
    return reached


def _agree(
    a: NDArray[np.int64],
    i: NDArray[np.int64],
    b: NDArray[np.int64],
    j: NDArray[np.int64],
    most: NDArray[np.int64],
    step: int,
) -> NDArray[np.int64]:
    """The number of equal tokens [pairs] of ``a`` from ``i`` and ``b`` from ``j``, up to ``most`` [pairs]."""
    agreeing = np.zeros(len(i), dtype=np.int64)
    active = np.flatnonzero(most > 0)
    while len(active):
        here = step * agreeing[active]
        active = active[a[i[active] + here] == b[j[active] + here]]
        agreeing[active] += 1
        active = active[agreeing[active] < most[active]]
    return agreeing


def _concatenated(
    texts: Sequence[NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All tokens concatenated, the text of each token, and the end of each text."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *texts])
    return tokens, np.repeat(np.arange(len(texts)), lengths), np.cumsum(lengths)


def _pieces(
    tokens: NDArray[np.int64], owner: NDArray[np.int64], length: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hash of every window of ``length`` tokens, and the starts of those that lie within one text."""
    hashes = window_hashes(tokens, length)
    return hashes, np.flatnonzero(owner[: len(hashes)] == owner[length - 1 :][: len(hashes)])


def _repeated(tokens: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Which windows [tokens] of ``length`` tokens, at least 2, repeat a single token."""
    repeated = np.zeros(len(tokens), dtype=np.bool_)
    if 2 <= length <= len(tokens):
        changes = np.append(0, np.cumsum(tokens[1:] != tokens[:-1]))
        repeated[: len(tokens) - length + 1] = changes[length - 1 :] == changes[: len(tokens) - length + 1]
    return repeated
