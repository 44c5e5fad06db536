"""Texts that are nearly a record: does the model know the record itself, or only texts like it?

``neighbour`` is after Mattern et al. (2023), ``pac`` after Ye et al. (2024), ``repeat`` after a signal of CAMIA (Chang
et al. 2024). No other model makes the texts: tokens of a record are swapped, and both attacks use the same copies. For
a masked model, each token is scored while masked; for a pair, tokens of the target are swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.queries import Answers, AttackQueries, Query, asking, draws
from audits.scores.rows import begins_with_bos, frame_of
from audits.scores.tasks import CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.membership.workload import Workload
    from audits.scores.subject import AuditedModel

#: The number of copies of each record, and the fraction of its tokens that is swapped in each.
COPIES, SHARE = 8, 0.1
#: The fraction of a record's tokens at either extreme of the likelihoods that ``pac`` uses.
ENDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The ``places`` of a row that may be altered; its scored tokens are those from ``begin`` to before ``end``."""

    places: NDArray[np.int64]
    begin: int
    end: int


def tokens_of(subject: AuditedModel, work: Workload) -> Callable[[NDArray[np.int64]], Tokens]:
    """A function that gives the tokens of a row of ``work``; for pairs, those of the target.

    Special tokens around a text or in a target are never altered. Requires that ``why_no_tokens`` is empty.
    """
    if work.task == SEQ2SEQ_LM:
        special = subject.model.tokenizer.all_special_ids

        def of_target(row: NDArray[np.int64]) -> Tokens:
            begin = 1 + int(row[0])
            positions = begin + np.flatnonzero(~np.isin(row[begin:], special))
            return Tokens(places=positions, begin=begin, end=len(row))

        return of_target
    if work.task == MASKED_LM:
        frame = frame_of(subject.model.tokenizer)
        front, back = len(frame.front), len(frame.back)
        return lambda row: Tokens(places=np.arange(front, len(row) - back), begin=front, end=len(row) - back)
    first = int(begins_with_bos(subject.model))
    return lambda row: Tokens(places=np.arange(first, len(row)), begin=1, end=len(row))


def why_no_tokens(work: Workload) -> str:
    """Why tokens cannot be altered; empty if they can."""
    if work.task in (CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM):
        return ""
    return f"it alters tokens that a model predicts, which one for {work.task} does not"


def why_no_continuation(work: Workload) -> str:
    """Why text cannot be put in front of a record; empty if it can."""
    if work.task == CAUSAL_LM:
        return ""
    return f"it puts text in front of a record, which a model for {work.task} does not continue"


class _Neighbours:
    """The mean log-probability of the unaltered tokens, minus that in copies in which other tokens are swapped."""

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_tokens(work)

    def ask(self, subject: AuditedModel, work: Workload) -> AttackQueries:
        """See ``Query``."""
        tokens = list(map(tokens_of(subject, work), work.rows))
        rows = _copies(work, tokens)

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            before = own.of(record)
            lost = 0.0
            for copy in range(begin, begin + COPIES):
                stay = (rows[copy] == work.rows[record])[tokens[record].begin : tokens[record].end]
                lost += (before - answers.of(copy))[stay].sum() / max(1, int(stay.sum()))
            return lost / COPIES

        return AttackQueries(rows=rows, copies=COPIES, score=score)


class _Swaps:
    """The polarized distance of the log-probabilities, minus its mean over copies with swapped tokens."""

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_tokens(work)

    def ask(self, subject: AuditedModel, work: Workload) -> AttackQueries:
        """See ``Query``."""
        rows = _copies(work, list(map(tokens_of(subject, work), work.rows)))

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            copies = [polarized(answers.of(copy)) for copy in range(begin, begin + COPIES)]
            return polarized(own.of(record)) - float(np.mean(copies))

        return AttackQueries(rows=rows, copies=COPIES, score=score)


class _Repeat:
    """Minus the gain in likelihood of a record that follows itself: a memorized record gains little."""

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_continuation(work)

    def ask(self, subject: AuditedModel, work: Workload) -> AttackQueries:
        """See ``Query``."""
        first = int(begins_with_bos(subject.model))
        limit = subject.max_length or 0
        rows = [twice(row, first, limit) for row in work.rows]

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            once = len(work.rows[record]) - 1
            second = answers.of(begin)[once:][1 - first :]
            return float(own.of(record)[: len(second)].mean() - second.mean()) if len(second) else 0.0

        return AttackQueries(rows=rows, copies=1, score=score)


def _copies(work: Workload, tokens: Sequence[Tokens]) -> list[NDArray[np.int64]]:
    """``COPIES`` of each row with some of its ``tokens`` swapped: the same for every attack, so scored only once."""
    return [
        swapped(row, token_ids.places, random)
        for row, token_ids, digest in zip(work.rows, tokens, work.digests, strict=True)
        for random in [draws(digest, "copies")]
        for _ in range(COPIES)
    ]


def swapped(row: NDArray[np.int64], positions: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """``row`` with a fraction ``SHARE`` of the ids at ``positions``, at least 2 if there are, permuted cyclically."""
    count = min(len(positions), max(2, round(SHARE * len(positions))))
    chosen = positions[random.choice(len(positions), size=count, replace=False)]
    other = row.copy()
    other[chosen] = row[np.roll(chosen, 1)]
    return other


def twice(row: NDArray[np.int64], first: int, limit: int) -> NDArray[np.int64]:
    """``row`` followed by its ids after the first ``first``, truncated to ``limit`` ids."""
    return np.concatenate([row, row[first:]])[:limit]


def polarized(lp: NDArray[np.float64]) -> float:
    """The mean of the highest fifth of ``lp`` [tokens], at least one, plus that of the lowest fifth."""
    ranked = np.sort(lp)
    count = max(1, int(ENDS * len(lp) + 1e-9))
    return float(ranked[-count:].mean() + ranked[:count].mean())


QUERIES: dict[str, Query] = {"neighbour": _Neighbours(), "pac": _Swaps(), "repeat": _Repeat()}
NEIGHBOUR, PAC, REPEAT = (asking(name) for name in QUERIES)
