"""ReCaLL and CON-ReCaLL: how other records in front of a record change its likelihood.

Non-members in front reduce a member's relative likelihood more than another non-member's (Xie et al. 2024); members in
front do so less (Wang et al. 2024). Using records in front of others reveals their membership, so they are set aside,
in the order of digests and whatever their side, until there are enough of both. The records that follow in that order
are as likely to be members as before, so tests on them remain valid.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.neighbours import why_no_continuation
from audits.membership.queries import Answers, AttackQueries, Query, asking
from audits.membership.workload import Shots, Workload
from audits.scores.rows import begins_with_bos
from audits.scores.table import Skip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.scores.subject import AuditedModel

#: The number of records of each side that are put in front of others, and the largest fraction of all records that may
#: be set aside to find them.
SHOTS, MOST = 5, 0.1
#: The fraction of a model's context that they may fill.
FILLED = 0.5
#: The weight of the members in front relative to the non-members (the paper's gamma, which it tunes).
GAMMA = 0.5


def with_shots(work: Workload, attacks: Sequence[str]) -> Workload:
    """``work``, with records set aside if one of ``attacks`` puts them in front of others."""
    return put_aside(work) if not why_no_continuation(work) and set(attacks) & set(QUERIES) else work


def put_aside(work: Workload) -> Workload:
    """``work`` without the records set aside to be put in front of others; these become its ``shots``."""
    order = sorted(range(len(work.rows)), key=lambda i: work.digests[i])
    is_member = work.member[order]
    enough = (np.cumsum(is_member) >= SHOTS) & (np.cumsum(~is_member) >= SHOTS)
    taken = order[: int(enough.argmax()) + 1] if enough.any() else order
    if len(taken) > MOST * len(order):
        reason = (
            f"it puts {SHOTS} members and {SHOTS} non-members in front of the others, and to find them, {len(taken)} "
            f"of {len(order)} records would have to be put aside; give more"
        )
        return replace(work, shots=Shots(reason=reason))
    kept = np.ones(len(order), dtype=np.bool_)
    kept[taken] = False
    sides = {side: [work.rows[i] for i in taken if work.member[i] == side][:SHOTS] for side in (True, False)}
    return replace(
        work,
        rows=tuple(itertools.compress(work.rows, kept)),
        counts=work.counts[kept],
        records=tuple(itertools.compress(work.records, kept)),
        digests=tuple(itertools.compress(work.digests, kept)),
        member=work.member[kept],
        line=work.line[kept],
        truncated=work.truncated[kept],
        skipped=(*work.skipped, *((bool(work.member[i]), int(work.line[i]), Skip.PUT_ASIDE) for i in sorted(taken))),
        shots=Shots(nonmembers=sides[False], members=sides[True]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recall:
    """The log-likelihood after non-members divided by that alone.

    With ``contrast``, ``GAMMA`` times the log-likelihood after members is subtracted first.
    """

    contrast: bool

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_continuation(work) or ("no record was put aside" if work.shots is None else work.shots.reason)

    def ask(self, subject: AuditedModel, work: Workload) -> AttackQueries:
        """See ``Query``."""
        assert work.shots is not None
        first = int(begins_with_bos(subject.model))
        limit = subject.max_length or 0
        end = subject.model.tokenizer.eos_token_id
        sides = [work.shots.nonmembers, *([work.shots.members] if self.contrast else [])]
        fronts = [in_front(shots, first, int(FILLED * limit), end) for shots in sides]
        rows = [np.concatenate([front, row[first:]])[:limit] for row in work.rows for front in fronts]

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            counts = [len(rows[begin + i]) - len(front) - (1 - first) for i, front in enumerate(fronts)]
            count = min(counts)
            if count < 1:  # the context has no room after them
                return 0.0
            after = [answers.of(begin + i)[-tail:][:count].mean() for i, tail in enumerate(counts)]
            alone = float(own.of(record)[:count].mean())
            changed = after[0] - GAMMA * after[1] if self.contrast else after[0]
            return float(changed / min(alone, -1e-9))

        return AttackQueries(rows=rows, copies=len(fronts), score=score)


def in_front(rows: Sequence[NDArray[np.int64]], first: int, most: int, end: int | None) -> NDArray[np.int64]:
    """The first ``first`` ids of the first row, then all ``rows`` without these, each followed by ``end``.

    Each row is truncated to an equal share of ``most`` ids.
    """
    share = max(2, most // len(rows))
    behind = np.array([] if end is None else [end], dtype=np.int64)
    parts: list[NDArray[Any]] = [rows[0][:first]]
    for row in rows:
        parts += [row[first:][: share - len(behind)], behind]
    return np.concatenate(parts)


QUERIES: dict[str, Query] = {"recall": _Recall(contrast=False), "con-recall": _Recall(contrast=True)}
RECALL, CON_RECALL = (asking(name) for name in QUERIES)
