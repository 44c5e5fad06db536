"""The scores of every distinct row that an audit needs, whoever asked for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from audits.scoring.forward import Advance, silent
from audits.scoring.table import FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Scorer(Protocol):
    """A model that gives rows of one kind their scores."""

    #: Whether a row that begins another one has the same scores as the beginning of the other.
    causal: bool

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """How many scores each row gets."""

    def score(self, rows: Sequence[NDArray[Any]], advance: Advance = silent) -> NDArray[np.float32]:
        """The scores [6, total], rows as ``FIELDS``, row after row; ``advance`` is called with the scores done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """``values`` [6, total] and where in it the scores of each row begin, by the row's ``key``."""

    values: NDArray[np.float32]
    begins: Mapping[bytes, int]

    def take(self, rows: Sequence[NDArray[Any]], counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """The scores [6, counts.sum()] of ``rows``, in their order; a row may occur more than once."""
        starts = np.array([self.begins[key(row)] for row in rows], dtype=np.int64)
        ends = np.cumsum(counts)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        return self.values[:, places]


def key(row: NDArray[Any]) -> bytes:
    """What a row is known by: a digest of its type, shape and bytes."""
    digest = hashlib.blake2b(f"{row.dtype.str}{row.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(row).tobytes())
    return digest.digest()


def make_book(scorer: Scorer, rows: Sequence[NDArray[Any]], *, advance: Advance = silent) -> Book:
    """Score every distinct row once; for a causal model, a row that begins another one costs nothing."""
    distinct = {key(row): row for row in rows}
    if scorer.causal:
        whole, holder = _beginnings(distinct)
    else:
        whole, holder = list(distinct), {}
    counts = scorer.counts([distinct[name] for name in whole])
    values = scorer.score([distinct[name] for name in whole], advance)
    assert values.shape == (len(FIELDS), int(counts.sum()))
    starts = np.cumsum(counts) - counts
    begins = dict(zip(whole, starts.tolist(), strict=True))
    return Book(values=values, begins=begins | {name: begins[other] for name, other in holder.items()})


def work(scorer: Scorer, rows: Sequence[NDArray[Any]]) -> int:
    """How many scores ``make_book`` will compute."""
    distinct = {key(row): row for row in rows}
    names = _beginnings(distinct)[0] if scorer.causal else list(distinct)
    return int(scorer.counts([distinct[name] for name in names]).sum())


def _beginnings(rows: Mapping[bytes, NDArray[Any]]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The rows that begin no other one, and for each of the rest one that it begins."""
    order = sorted(rows, key=lambda name: rows[name].tobytes())
    whole: list[bytes] = []
    holder: dict[bytes, bytes] = {}
    for name, following in zip(reversed(order), [None, *reversed(order[1:])], strict=True):
        # in the order of their bytes, a row that begins any other begins the next one
        if following is not None and rows[following].tobytes().startswith(rows[name].tobytes()):
            holder[name] = holder.get(following, following)
        else:
            whole.append(name)
    kept = set(whole)
    return [name for name in rows if name in kept], holder
