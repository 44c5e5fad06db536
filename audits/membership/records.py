"""Prepares two sets of records to be scored, and tabulates their scores."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.attack import Candidates
from audits.membership.gradients import GradientScores
from audits.membership.queries import Questions
from audits.membership.workload import Workload
from audits.scores.scorer import RowScores
from audits.scores.subject import AuditedModel, encode_records
from audits.scores.table import FIELDS, ScoreTable, Skip
from privctl.data.records import Record
from privctl.data.several import DataPath
from privctl.domain.errors import InputError
from privctl.domain.progress import Progress, unseen
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


def prepare(
    subject: AuditedModel,
    members: Sequence[Record],
    nonmembers: Sequence[Record],
    workers: Workers = ALONE,
    *,
    drawn: bool = False,
    progress: Progress = unseen,
) -> Workload:
    """Encode both sets and decide what can be scored; each of several ``workers`` does this for its share.

    A record that occurs more than once is judged by ``left_out``; a record in which the model has nothing to predict
    cannot be scored. Records left out are listed in ``skipped`` as (member, line, reason). If the sides were ``drawn``
    by coins, only identical records count as one; otherwise also those that differ in case, white space or Unicode
    form, as a training record in another spelling is not one that the model was not trained on.
    """
    listed = [(True, record) for record in members] + [(False, record) for record in nonmembers]
    names = [record.digest for _, record in listed]
    reasons = left_out(listed, names if drawn else [record.content for _, record in listed])
    skipped = [(m, r.line, why) for (m, r), why in zip(listed, reasons, strict=True) if why is not None]
    distinct = [(m, r, name) for (m, r), name, why in zip(listed, names, reasons, strict=True) if why is None]
    distinct = distinct[workers.rank :: workers.size]
    if not workers.is_main:
        skipped = []  # only the main process lists records that are not scored
    encoded = encode_records(subject, [record for _, record, _ in distinct], progress)
    counts = subject.scorer.counts(encoded.rows)
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


def require_both_sides(work: Workload, members: DataPath, nonmembers: DataPath) -> None:
    """Raise InputError, with the reasons, if no record of a side can be scored."""
    for member, path in ((True, members), (False, nonmembers)):
        if not (work.member == member).any():
            counts = Counter(skip for side, _, skip in work.skipped if side == member)
            why = "; ".join(f"{count} left out ({skip.reason})" for skip, count in counts.items())
            raise InputError(
                f"{path} has no record that can be scored: {why}; give records that differ between the files"
            )


def left_out(listed: Sequence[tuple[bool, Record]], names: Sequence[bytes]) -> list[Skip | None]:
    """Why each record is left out before encoding, None if it is kept; equal ``names`` mean the same record.

    ``listed`` says whether each record is a member. A record on both sides is left out of both. If there is one, equal
    records were assigned to sides one by one, and the larger side more often gets all records of one content. Then all
    repeated records are left out: if those that fell on one side were kept, whatever repeated records have in common
    would look like membership. If no record is on both sides, equal records were kept together, or duplicated after
    their side was known, and each content counts once. An empty text is left out, although a classifier would score its
    special tokens.
    """
    counts: dict[bool, Counter[bytes]] = {True: Counter(), False: Counter()}
    empty = [record.pixels is None and not record.text.strip() for _, record in listed]
    for (member, _), name, nothing in zip(listed, names, empty, strict=True):
        if not nothing:
            counts[member][name] += 1
    both = counts[True].keys() & counts[False].keys()
    seen = set[bytes]()
    reasons: list[Skip | None] = []
    for (member, _), name, nothing in zip(listed, names, empty, strict=True):
        if nothing:
            reasons.append(Skip.TOO_SHORT)
        elif name in both:
            reasons.append(Skip.IN_BOTH)
        elif both and counts[member][name] > 1:
            reasons.append(Skip.REPEATED)
        else:
            reasons.append(Skip.DUPLICATE if name in seen else None)
        seen.add(name)
    return reasons


def candidates_of(
    work: Workload,
    row_scores: RowScores,
    reference: NDArray[np.float64] | None = None,
    questions: Questions | None = None,
    gradients: GradientScores | None = None,
) -> Candidates:
    """The candidates with finite scores; the other records are added to the skipped ones.

    ``reference`` [len(work.rows)] is the mean log-probability under a reference model; ``row_scores`` also answer the
    ``questions``; ``gradients`` are the scores of gradient attacks.
    """
    questions, gradients = questions or Questions(), gradients or GradientScores()
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
        answered={
            name: scores[finite] for name, scores in (questions.answered(work, row_scores) | gradients.found).items()
        },
        unasked={**questions.unasked, **gradients.unasked},
    )
