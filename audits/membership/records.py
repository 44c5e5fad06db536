"""Two sets of records as rows to be scored, and the table of their scores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.attack import Candidates
from audits.membership.queries import Questions
from audits.membership.workload import Workload
from audits.scores.scorer import RowScores
from audits.scores.subject import AuditedModel
from audits.scores.table import FIELDS, ScoreTable, Skip
from privctl.data.records import Record
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


def prepare(
    subject: AuditedModel, members: Sequence[Record], nonmembers: Sequence[Record], workers: Workers = ALONE
) -> Workload:
    """Encode both sets once and decide what can be scored; of several ``workers`` each does this for its share.

    A record that occurs in both sets is left out of both, one that repeats within its set counts once, one of which the
    model has nothing to predict cannot be scored; each is listed in ``skipped`` as (member, line, reason).
    """
    digests = [[record.digest for record in records] for records in (members, nonmembers)]
    in_both = set(digests[0]) & set(digests[1])
    distinct: list[tuple[bool, Record, bytes]] = []
    skipped: list[tuple[bool, int, Skip]] = []
    for member, records, names in ((True, members, digests[0]), (False, nonmembers, digests[1])):
        seen: set[bytes] = set()
        for record, name in zip(records, names, strict=True):
            if name in in_both or name in seen:
                skipped.append((member, record.line, Skip.IN_BOTH if name in in_both else Skip.DUPLICATE))
            else:
                seen.add(name)
                distinct.append((member, record, name))
    distinct = distinct[workers.rank :: workers.size]
    if not workers.is_main:
        skipped = []  # those that no process scores, the main one lists
    encoded = subject.rows([record for _, record, _ in distinct])
    # An empty text is no record, although a classifier would say something of its special tokens.
    held = np.array([record.pixels is not None or bool(record.text.strip()) for _, record, _ in distinct], np.bool_)
    counts = np.where(held, subject.scorer.counts(encoded.rows), 0)
    scored = counts > 0
    skipped += [(m, r.line, Skip.TOO_SHORT) for (m, r, _), long in zip(distinct, scored, strict=True) if not long]
    chosen = list(itertools.compress(distinct, scored))
    return Workload(
        task=subject.task,
        rows=tuple(itertools.compress(encoded.rows, scored)),
        counts=counts[scored],
        records=tuple(record for _, record, _ in chosen),
        digests=tuple(name for _, _, name in chosen),
        member=np.array([member for member, _, _ in chosen], dtype=np.bool_),
        line=np.array([record.line for _, record, _ in chosen], dtype=np.int64),
        truncated=encoded.truncated[scored],
        skipped=tuple(skipped),
        max_length=subject.max_length,
        head=getattr(subject.scorer, "problem", None),
    )


def candidates_of(
    work: Workload,
    row_scores: RowScores,
    reference: NDArray[np.float64] | None = None,
    questions: Questions | None = None,
) -> Candidates:
    """The scores and texts of every record whose scores are finite; the others join those that were skipped.

    ``reference`` [len(work.rows)] is the mean log-probability of each under a reference model; ``row_scores`` also
    answer the ``questions``.
    """
    questions = questions or Questions()
    counts = work.counts
    values = row_scores.take(work.rows, counts)
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
        records=tuple(itertools.compress(work.records, finite.tolist())),
        digests=tuple(itertools.compress(work.digests, finite.tolist())),
        task=work.task,
        head=work.head,
        reference=None if reference is None else reference[finite],
        answered={name: found[finite] for name, found in questions.answered(work, row_scores).items()},
        unasked=questions.unasked,
    )
