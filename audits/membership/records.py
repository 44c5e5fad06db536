"""Two sets of records as rows to be scored, and the table of their scores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.attack import Candidates
from audits.scoring.book import Book
from audits.scoring.rows import begins_with_bos, encode, length_limit
from audits.scoring.table import FIELDS, ScoreTable, Skip
from privctl.data import Record
from privctl.models import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Two sets of records as token ids, ready to be scored; ``rows`` are in file order, members first."""

    rows: tuple[NDArray[np.int64], ...]
    texts: tuple[str, ...]
    member: NDArray[np.bool_]
    line: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    skipped: tuple[tuple[bool, int, Skip], ...]
    max_length: int
    bos: bool


def prepare(
    model: LanguageModel, members: Sequence[Record], nonmembers: Sequence[Record], max_length: int | None = None
) -> Workload:
    """Tokenise both sets once and decide what can be scored.

    A record that occurs in both sets is left out of both, one that repeats within its set counts once, one of fewer
    than 2 tokens cannot be scored; each is listed in ``skipped`` as (member, line, reason).
    """
    limit = length_limit(model, max_length)
    both = {r.text for r in members} & {r.text for r in nonmembers}
    kept: list[tuple[bool, Record]] = []
    skipped: list[tuple[bool, int, Skip]] = []
    for member, records in ((True, members), (False, nonmembers)):
        seen: set[str] = set()
        for record in records:
            if record.text in both or record.text in seen:
                skipped.append((member, record.line, Skip.IN_BOTH if record.text in both else Skip.DUPLICATE))
            else:
                seen.add(record.text)
                kept.append((member, record))
    rows = encode(model, [record.text for _, record in kept])
    scored = [(*entry, row) for entry, row in zip(kept, rows, strict=True) if len(row) >= 2]
    skipped += [(m, r.line, Skip.TOO_SHORT) for (m, r), row in zip(kept, rows, strict=True) if len(row) < 2]
    return Workload(
        rows=tuple(row[:limit] for _, _, row in scored),
        texts=tuple(record.text for _, record, _ in scored),
        member=np.array([member for member, _, _ in scored], dtype=np.bool_),
        line=np.array([record.line for _, record, _ in scored], dtype=np.int64),
        truncated=np.array([len(row) > limit for _, _, row in scored], dtype=np.bool_),
        skipped=tuple(skipped),
        max_length=limit,
        bos=begins_with_bos(model),
    )


def candidates_of(work: Workload, book: Book, reference: NDArray[np.float64] | None = None) -> Candidates:
    """The scores and texts of every record whose scores are finite; the others join those that were skipped.

    ``reference`` [len(work.rows)] is the mean log-probability of each under a reference model.
    """
    counts = np.array([len(row) - 1 for row in work.rows], dtype=np.int64)
    values = book.take(work.rows, counts)
    finite = np.logical_and.reduceat(np.isfinite(values).all(axis=0), np.cumsum(counts) - counts)
    skipped = list(work.skipped)
    for member, line in zip(work.member[~finite].tolist(), work.line[~finite].tolist(), strict=True):
        skipped.append((member, line, Skip.NOT_FINITE))
    flags, lines, reasons = zip(*skipped, strict=True) if skipped else ((), (), ())
    table = ScoreTable(
        **dict(zip(FIELDS, values[:, np.repeat(finite, counts)], strict=True)),
        offsets=np.concatenate([[0], np.cumsum(counts[finite])]),
        member=work.member[finite],
        line=work.line[finite],
        truncated=work.truncated[finite],
        skipped_member=np.array(flags, dtype=np.bool_),
        skipped_line=np.array(lines, dtype=np.int64),
        skipped_reason=np.array(reasons, dtype=np.uint8),
    )
    return Candidates(
        table=table,
        texts=tuple(itertools.compress(work.texts, finite.tolist())),
        reference=None if reference is None else reference[finite],
    )
