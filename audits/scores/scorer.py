"""The scores of all distinct rows that the parts of an audit need, each computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from audits.scores.cache import KEY_BYTES, CachedScores, ScoreCache, cached_scores, join_scores
from audits.scores.table import FIELDS
from privctl.domain.errors import InputError
from privctl.domain.progress import Advance, silent
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of scores computed between two writes to the cache: the most that a killed audit loses.
_PIECE = 1 << 16
#: The number of cached rows rescored to check that the cache belongs to the model, and the tolerance; in 16 bits, a
#: logit of 16 is rounded to eighths.
_PROBES, _TOLERANCE, _COARSE_TOLERANCE = 8, 2e-2, 0.5


class Scorer(Protocol):
    """A model that scores rows of one kind."""

    #: Whether a prefix of a row has a prefix of the row's scores.
    causal: bool

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The number of scores of each row."""

    def score(self, rows: Sequence[NDArray[Any]], advance: Advance = silent) -> NDArray[np.float32]:
        """The scores [6, total], fields as ``FIELDS``, row after row; ``advance`` is called with the scores done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """``values`` [6, total], and the index at which the scores of each row begin, by the row's ``key``."""

    values: NDArray[np.float32]
    begins: Mapping[bytes, int]

    def take(self, rows: Sequence[NDArray[Any]], counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """The scores [6, counts.sum()] of ``rows``, in their order; rows may repeat."""
        starts = np.array([self.begins[key(row)] for row in rows], dtype=np.int64)
        ends = np.cumsum(counts)
        indices = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        return self.values[:, indices]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringPlan:
    """What to score: ``rows`` by key, the keys of rows to ``run``, and for each prefix a row that begins with it."""

    scorer: Scorer
    rows: Mapping[bytes, NDArray[Any]]
    run: Sequence[bytes]
    beginnings: Mapping[bytes, bytes]
    cached: CachedScores
    cache: ScoreCache | None

    @property
    def work(self) -> int:
        """The number of scores to compute."""
        return int(self.scorer.counts([self.rows[name] for name in self.run]).sum())


def key(row: NDArray[Any]) -> bytes:
    """The key of a row: a digest of its type, shape and bytes."""
    digest = hashlib.blake2b(f"{row.dtype.str}{row.shape}".encode(), digest_size=KEY_BYTES)
    digest.update(np.ascontiguousarray(row).tobytes())
    return digest.digest()


def plan_scoring(
    scorer: Scorer, rows: Sequence[NDArray[Any]], cache: ScoreCache | None = None, *, coarse: bool = False
) -> ScoringPlan:
    """Plan to score the distinct rows not in ``cache``; for a causal model, prefixes of other rows need no pass.

    Batches affect rounding, so rows are run in the order of their digests, which mixes members and non-members of equal
    length. ``coarse`` says that rounding errors might be informative: if only some rows are cached, all are run and
    none stored. Raises InputError if the cache belongs to another model.
    """
    distinct = {key(row): row for row in rows}
    longest, beginnings = _beginnings(distinct) if scorer.causal else (list(distinct), {})
    cached = join_scores([]) if cache is None else _select(cache.load(), longest)
    cached_keys = {bytes(name) for name in cached.keys}
    if coarse and cached_keys and not cached_keys.issuperset(longest):
        cached, cached_keys, cache = join_scores([]), set(), None
    scoring = ScoringPlan(
        scorer=scorer,
        rows=distinct,
        run=sorted(name for name in longest if name not in cached_keys),
        beginnings=beginnings,
        cached=cached,
        cache=cache,
    )
    if cache is not None:
        _probe(scoring, cache, _COARSE_TOLERANCE if coarse else _TOLERANCE)
    return scoring


def compute_scores(
    scoring: ScoringPlan,
    *,
    share: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] = lambda: None,
    workers: Workers = ALONE,
    advance: Advance = silent,
) -> RowScores:
    """Run ``scoring`` and return the scores of all its rows.

    ``share`` (i, n) makes this the i-th of n processes that fill one cache together; ``barrier`` waits for the others.
    Without a cache, ``workers`` share the rows and exchange the scores. Long rows come first, so that memory runs out
    at the start or not at all.
    """
    counts = scoring.scorer.counts([scoring.rows[name] for name in scoring.run])
    order = np.argsort(-counts, kind="stable")
    pieces = np.split(order, np.flatnonzero(np.diff(np.cumsum(counts[order]) // _PIECE)) + 1) if len(order) else []
    chunks = [scoring.cached]
    parts: Iterable[NDArray[np.float32]]

    def scored(piece: NDArray[np.int64]) -> NDArray[np.float32]:
        return scoring.scorer.score([scoring.rows[scoring.run[i]] for i in piece], advance)

    if scoring.cache is None and workers.size > 1:
        if len(order):  # smaller pieces, so that every worker gets some
            pieces = np.array_split(order, min(len(order), workers.size * len(pieces)))
        exchanged = workers.spread(pieces, lambda piece: torch.from_numpy(scored(piece).T), len(FIELDS), torch.float32)
        parts = [part.T.numpy() for part in exchanged]
    else:
        pieces = pieces[share[0] :: share[1]]
        parts = map(scored, pieces)
    for piece, values in zip(pieces, parts, strict=True):
        chunk = cached_scores([scoring.run[i] for i in piece], counts[piece], values)
        if scoring.cache is not None:
            scoring.cache.add(chunk)
        chunks.append(chunk)
    barrier()
    if share[1] > 1 and scoring.cache is not None:
        chunks = [_select(scoring.cache.load(), set(scoring.rows))]
    merged = join_scores(chunks)
    begins = merged.begins()
    assert merged.values.shape[0] == len(FIELDS)
    return RowScores(
        values=merged.values, begins=begins | {name: begins[longer] for name, longer in scoring.beginnings.items()}
    )


def _select(scores: CachedScores, names: Sequence[bytes] | set[bytes]) -> CachedScores:
    keys = set(names)
    kept = np.array([bytes(name) in keys for name in scores.keys], dtype=np.bool_)
    return CachedScores(
        keys=scores.keys[kept], counts=scores.counts[kept], values=scores.values[:, np.repeat(kept, scores.counts)]
    )


def _probe(scoring: ScoringPlan, cache: ScoreCache, tolerance: float) -> None:
    """Rescore a few cached rows, to reject a cache that was moved or edited."""
    begins = scoring.cached.begins()
    names = sorted(begins)[:_PROBES]
    if not names:
        return
    rows = [scoring.rows[name] for name in names]
    counts = scoring.scorer.counts(rows)
    rescored = scoring.scorer.score(rows)[FIELDS.index("lp")]
    stored = RowScores(values=scoring.cached.values, begins=begins).take(rows, counts)[FIELDS.index("lp")]
    if not np.allclose(rescored, stored, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise InputError(f"{cache.folder} holds scores that this model does not give; delete it, or give --no-cache")


def _beginnings(rows: Mapping[bytes, NDArray[Any]]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The rows that are not a prefix of another, and for each of the others a row that begins with it."""
    order = sorted(rows, key=lambda name: rows[name].tobytes())
    longest: list[bytes] = []
    holder: dict[bytes, bytes] = {}
    for name, following in zip(reversed(order), [None, *reversed(order)], strict=False):
        # in byte order, a row that is a prefix of any other is a prefix of the next one
        if following is not None and rows[following].tobytes().startswith(rows[name].tobytes()):
            holder[name] = holder.get(following, following)
        else:
            longest.append(name)
    longest_keys = set(longest)
    return [name for name in rows if name in longest_keys], holder
