"""The scores of every distinct row that an audit needs, whoever asked for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from audits.scores.cache import KEY_BYTES, CachedScores, ScoreCache, joined, scored
from audits.scores.table import FIELDS
from privctl.domain.errors import InputError
from privctl.domain.progress import Advance, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Scores computed between two writes to the cache: what a killed audit loses at most.
_PIECE = 1 << 16
#: Cached rows that are scored again to see that the cache belongs to the model, and how far they may be off.
_PROBES, _TOLERANCE = 8, 2e-2


class Scorer(Protocol):
    """A model that gives rows of one kind their scores."""

    #: Whether a row that begins another one has the same scores as the beginning of the other.
    causal: bool

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """How many scores each row gets."""

    def score(self, rows: Sequence[NDArray[Any]], advance: Advance = silent) -> NDArray[np.float32]:
        """The scores [6, total], rows as ``FIELDS``, row after row; ``advance`` is called with the scores done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """``values`` [6, total] and where in it the scores of each row begin, by the row's ``key``."""

    values: NDArray[np.float32]
    begins: Mapping[bytes, int]

    def take(self, rows: Sequence[NDArray[Any]], counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """The scores [6, counts.sum()] of ``rows``, in their order; a row may occur more than once."""
        starts = np.array([self.begins[key(row)] for row in rows], dtype=np.int64)
        ends = np.cumsum(counts)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        return self.values[:, places]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringPlan:
    """What is to be scored: ``rows`` by key, the keys of those that must ``run``, and what others are beginnings of."""

    scorer: Scorer
    rows: Mapping[bytes, NDArray[Any]]
    run: Sequence[bytes]
    beginnings: Mapping[bytes, bytes]
    known: CachedScores
    cache: ScoreCache | None

    @property
    def work(self) -> int:
        """How many scores will be computed."""
        return int(self.scorer.counts([self.rows[name] for name in self.run]).sum())


def key(row: NDArray[Any]) -> bytes:
    """What a row is known by: a digest of its type, shape and bytes."""
    digest = hashlib.blake2b(f"{row.dtype.str}{row.shape}".encode(), digest_size=KEY_BYTES)
    digest.update(np.ascontiguousarray(row).tobytes())
    return digest.digest()


def plan(scorer: Scorer, rows: Sequence[NDArray[Any]], cache: ScoreCache | None = None) -> ScoringPlan:
    """Every distinct row once, less what ``cache`` knows; for a causal model, less what begins another row.

    Raises InputError where the cache turns out to belong to another model.
    """
    distinct = {key(row): row for row in rows}
    whole, beginnings = _beginnings(distinct) if scorer.causal else (list(distinct), {})
    known = joined([]) if cache is None else _wanted(cache.load(), whole)
    have = {bytes(name) for name in known.keys}
    made = ScoringPlan(
        scorer=scorer,
        rows=distinct,
        run=[name for name in whole if name not in have],
        beginnings=beginnings,
        known=known,
        cache=cache,
    )
    if cache is not None:
        _probe(made, cache)
    return made


def make_book(
    made: ScoringPlan,
    *,
    share: tuple[int, int] = (0, 1),
    meet: Callable[[], None] = lambda: None,
    advance: Advance = silent,
) -> RowScores:
    """Score what ``made`` says must run.

    ``share`` (i, n) makes this the i-th of n processes that fill one cache together; ``meet`` waits for the others.
    Long rows come first, so that memory is short at the beginning or not at all.
    """
    counts = made.scorer.counts([made.rows[name] for name in made.run])
    order = np.argsort(-counts, kind="stable")
    pieces = np.split(order, np.flatnonzero(np.diff(np.cumsum(counts[order]) // _PIECE)) + 1) if len(order) else []
    parts = [made.known]
    for piece in pieces[share[0] :: share[1]]:
        names = [made.run[i] for i in piece]
        values = made.scorer.score([made.rows[name] for name in names], advance)
        part = scored(names, counts[piece], values)
        if made.cache is not None:
            made.cache.add(part)
        parts.append(part)
    meet()
    if share[1] > 1 and made.cache is not None:
        parts = [_wanted(made.cache.load(), set(made.rows))]
    whole = joined(parts)
    begins = whole.begins()
    assert whole.values.shape[0] == len(FIELDS)
    return RowScores(
        values=whole.values, begins=begins | {name: begins[other] for name, other in made.beginnings.items()}
    )


def _wanted(known: CachedScores, names: Sequence[bytes] | set[bytes]) -> CachedScores:
    wanted = set(names)
    kept = np.array([bytes(name) in wanted for name in known.keys], dtype=np.bool_)
    return CachedScores(
        keys=known.keys[kept], counts=known.counts[kept], values=known.values[:, np.repeat(kept, known.counts)]
    )


def _probe(made: ScoringPlan, cache: ScoreCache) -> None:
    """Score a few cached rows again: a cache that someone moved or edited must not speak for this model."""
    begins = made.known.begins()
    names = sorted(begins)[:_PROBES]
    if not names:
        return
    rows = [made.rows[name] for name in names]
    counts = made.scorer.counts(rows)
    again = made.scorer.score(rows)[FIELDS.index("lp")]
    kept = RowScores(values=made.known.values, begins=begins).take(rows, counts)[FIELDS.index("lp")]
    if not np.allclose(again, kept, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        raise InputError(f"{cache.folder} holds scores that this model does not give; delete it, or give --no-cache")


def _beginnings(rows: Mapping[bytes, NDArray[Any]]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The rows that begin no other one, and for each of the rest one that it begins."""
    order = sorted(rows, key=lambda name: rows[name].tobytes())
    whole: list[bytes] = []
    holder: dict[bytes, bytes] = {}
    for name, following in zip(reversed(order), [None, *reversed(order)], strict=False):
        # in the order of their bytes, a row that begins any other begins the next one
        if following is not None and rows[following].tobytes().startswith(rows[name].tobytes()):
            holder[name] = holder.get(following, following)
        else:
            whole.append(name)
    kept = set(whole)
    return [name for name in rows if name in kept], holder
