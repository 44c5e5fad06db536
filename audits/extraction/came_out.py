"""Which records come out in what a model wrote, found in one pass over a file for several sets of prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction.spans import SpanIndex, Spans
from audits.extraction.windows import token_batches
from audits.scores.rows import decoded
from audits.statistics.two_rates import fisher
from privctl.data.columns import Columns
from privctl.data.several import DataPath
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The level of the test of whether prompts were chosen with one of the files at hand. It is high, as a miss would lead
#: to a false accusation.
_CHOSEN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMatches:
    """What comes out of a file's records in the texts written for one set of prompts.

    ``record`` and ``text`` are pairs [pairs], of which ``verbatim`` [pairs] match word for word. ``characters``
    [records] counts the characters of each record that occur word for word in some text; ``longest`` [records] is its
    longest such stretch in tokens. The rows of ``stretches`` [stretches, 4] are record, first token, end token
    (exclusive), and whether the match is word for word.
    """

    record: NDArray[np.int64]
    text: NDArray[np.int64]
    verbatim: NDArray[np.bool_]
    characters: NDArray[np.int64]
    longest: NDArray[np.int64]
    stretches: NDArray[np.int64]

    def records(
        self, chosen: NDArray[np.bool_], *, nearly: bool, but: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Which of the ``chosen`` records [records] come out word for word, or ``nearly`` so.

        Stretches marked by ``but`` [stretches] are ignored.
        """
        counted = np.ones(len(self.stretches), dtype=np.bool_) if but is None else ~but
        record, _, _, verbatim = self.stretches[counted].T
        extracted = np.zeros(len(chosen), dtype=np.bool_)
        extracted[record if nearly else record[verbatim > 0]] = True
        return extracted & chosen

    def texts(self, chosen: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
        """Which of ``count`` texts contain one of the ``chosen`` records word for word."""
        extracted = np.zeros(count, dtype=np.bool_)
        extracted[self.text[self.verbatim & chosen[self.record]]] = True
        return extracted


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """The records of a file that are long enough for a span, and what comes out of them for each set of prompts.

    ``digest`` [records] identifies their tokens, ``known`` [records] marks records with a span in the prompts,
    ``begun`` [records] records with part of a span there. ``short`` counts the records that are too short and left out.
    """

    line: NDArray[np.int64]
    digest: NDArray[np.uint64]
    known: NDArray[np.bool_]
    begun: NDArray[np.bool_]
    short: int
    came_out: tuple[FileMatches, ...]


def search(
    model: LanguageModel,
    batches: Iterable[tuple[Sequence[int], Sequence[NDArray[np.int64]]]],
    least: int,
    indexes: Sequence[SpanIndex],
    prompts: SpanIndex,
    parts: SpanIndex,
    advance: Advance = silent,
) -> SearchedFile:
    """Search the records of ``batches`` (lines and tokens) for spans in each of ``indexes`` and in the ``prompts``.

    ``parts`` finds shorter pieces of records in the prompts. ``advance`` counts records. Records of fewer than
    ``least`` tokens are only counted.
    """
    lines: list[int] = []
    digests: list[int] = []
    flags_by_kind: dict[str, list[NDArray[np.bool_]]] = {"known": [], "begun": []}
    short = 0
    by_index: list[list[tuple[Spans, int, NDArray[np.int64]]]] = [[] for _ in indexes]
    for numbers, rows in batches:
        kept = [(line, row) for line, row in zip(numbers, rows, strict=True) if len(row) >= least]
        short += len(rows) - len(kept)
        tokens = [row for _, row in kept]
        for seen, index in zip(flags_by_kind.values(), (prompts, parts), strict=True):
            flags = np.zeros(len(kept), dtype=np.bool_)
            flags[index.search(tokens).record] = True
            seen.append(flags)
        for of_index, index in zip(by_index, indexes, strict=True):
            spans = index.search(tokens)
            of_index.append((spans, len(lines), _characters(model, spans, tokens)))
        lines += [line for line, _ in kept]
        digests += [_digest(row) for row in tokens]
        advance(len(rows))
    return SearchedFile(
        line=np.array(lines, dtype=np.int64),
        digest=np.array(digests, dtype=np.uint64),
        **{name: np.concatenate([np.zeros(0, dtype=np.bool_), *flags]) for name, flags in flags_by_kind.items()},
        short=short,
        came_out=tuple(_merged(outcome, len(lines)) for outcome in by_index),
    )


def records_at(
    model: LanguageModel, path: DataPath, columns: Columns, least: int, wanted: Collection[int]
) -> dict[int, NDArray[np.int64]]:
    """The tokens of the ``wanted`` records of a file.

    Records are numbered from 0, counting those of at least ``least`` tokens.
    """
    by_record: dict[int, NDArray[np.int64]] = {}
    record = 0
    if not wanted:
        return by_record
    for _, tokens in token_batches(model, path, columns):
        for row in tokens:
            if len(row) < least:
                continue
            if record in wanted:
                by_record[record] = row
            record += 1
    return by_record


def usable(files: Sequence[SearchedFile]) -> list[NDArray[np.bool_]]:
    """Which records [records] of each file count: distinct, in no other file, and not known from the prompts."""
    shared = _in_several(files)
    masks = []
    for file in files:
        once = np.zeros(len(file.digest), dtype=np.bool_)
        once[np.unique(file.digest, return_index=True)[1]] = True
        masks.append(once & ~file.known & ~np.isin(file.digest, shared, kind="sort"))  # see ``CopyCounter.add``
    return masks


def comparable(files: Sequence[SearchedFile], *, alone: bool = False) -> list[NDArray[np.bool_]]:
    """Which of the usable records may be compared with those of the other file, [records].

    If a record is in several files, equal records were assigned to sides one by one, and repeated records may not be
    compared: see ``audits.membership.records.left_out``. If the prompts contain parts of one file's records
    significantly more often than of the other's, they were chosen with that file at hand, and no such record may be
    compared: a model that never saw it may continue it. ``alone`` always excludes repeated records.
    """
    masks = usable(files)
    if alone or len(_in_several(files)):
        for file, among in zip(files, masks, strict=True):
            digests, counts = np.unique(file.digest, return_counts=True)
            among &= np.isin(file.digest, digests[counts == 1], kind="sort")
    (a, n), (b, m) = (
        (int((file.begun & mask).sum()), int(mask.sum())) for file, mask in zip(files, masks, strict=True)
    )
    if min(n, m) and 2 * min(fisher(a, n, b, m), fisher(b, m, a, n)) <= _CHOSEN:
        masks = [mask & ~file.begun for file, mask in zip(files, masks, strict=True)]
    return masks


def _in_several(files: Sequence[SearchedFile]) -> NDArray[np.uint64]:
    """The digests that occur in more than one file."""
    digests, counts = np.unique(np.concatenate([np.unique(file.digest) for file in files]), return_counts=True)
    return digests[counts > 1]


def drawn(file: SearchedFile, among: NDArray[np.bool_], count: int, seed: int) -> NDArray[np.bool_]:
    """``count`` of the records ``among`` [records], drawn by numpy's PCG64 under ``seed``; smaller draws are nested."""
    indices = np.flatnonzero(among)
    order = indices[np.argsort(file.digest[indices], kind="stable")]  # independent of the order of the file
    chosen = np.zeros(len(among), dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(order)[:count]] = True
    return chosen


def with_least_digests(
    files: Sequence[SearchedFile], among: Sequence[NDArray[np.bool_]], count: int
) -> list[NDArray[np.bool_]]:
    """The records [records] of each file that are among the ``count`` of least digest of all those ``among``."""
    every = np.sort(np.concatenate([file.digest[mask] for file, mask in zip(files, among, strict=True)]))[:count]
    return [mask & (file.digest <= every[-1]) if len(every) else mask for file, mask in zip(files, among, strict=True)]


def _characters(model: LanguageModel, spans: Spans, rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of record, characters that occur word for word in a text, and tokens of the longest stretch, [found, 3]."""
    found = []
    sure = np.flatnonzero(spans.verbatim)
    for record in np.unique(spans.record[sure]).tolist():
        of_record = sure[spans.record[sure] == record]
        covered = np.zeros(len(rows[record]) + 1, dtype=np.int64)
        np.add.at(covered, spans.start[of_record], 1)
        np.add.at(covered, spans.stop[of_record], -1)
        inside = np.cumsum(covered[:-1]) > 0
        edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]])))
        stretches = [rows[record][a:b] for a, b in edges.reshape(-1, 2).tolist()]
        characters = sum(map(len, decoded(model, stretches)))
        found.append((record, characters, int((spans.stop[of_record] - spans.start[of_record]).max())))
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def _merged(parts: Sequence[tuple[Spans, int, NDArray[np.int64]]], records: int) -> FileMatches:
    """Merge the batches ``parts``, each with the number of records before it, into unique pairs."""
    empty = np.zeros(0, dtype=np.int64)
    record = np.concatenate([empty, *(spans.record + before for spans, before, _ in parts)])
    text = np.concatenate([empty, *(spans.text for spans, _, _ in parts)])
    verbatim = np.concatenate([empty.astype(np.bool_), *(spans.verbatim for spans, _, _ in parts)])
    pairs, which = np.unique(np.stack([record, text]), axis=1, return_inverse=True)
    sure = np.zeros(pairs.shape[1], dtype=np.bool_)
    sure[which.ravel()[verbatim]] = True
    sizes = np.zeros((records, 2), dtype=np.int64)
    for _, before, characters in parts:
        sizes[characters[:, 0] + before] = characters[:, 1:]
    stretches = [np.stack([s.record + before, s.start, s.stop, s.verbatim], axis=1) for s, before, _ in parts]
    return FileMatches(
        record=pairs[0],
        text=pairs[1],
        verbatim=sure,
        characters=sizes[:, 0],
        longest=sizes[:, 1],
        stretches=np.unique(np.concatenate([empty.reshape(0, 4), *stretches]), axis=0),
    )


def _digest(row: NDArray[np.int64]) -> int:
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest(), "little")
