"""Texts that are nearly a record: does the model know the record itself, or just texts like it?

``neighbour`` after Mattern et al. (2023), ``pac`` after Ye et al. (2024), ``repeat`` after a signal of CAMIA (Chang et
al. 2024). No other model makes the texts: tokens of a record are swapped, and both attacks read the same copies. Of a
masked model each token's score is that of the token when it is masked; of a pair, tokens of the target are swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.queries import Answers, Asked, Query, asking, draws
from audits.scores.rows import begins_with_bos, frame_of
from audits.scores.tasks import CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.membership.workload import Workload
    from audits.scores.subject import AuditedModel

#: Copies of each record, and the share of its tokens that is swapped in each.
COPIES, SHARE = 8, 0.1
#: Share of a record's tokens at either end of the likelihoods that ``pac`` looks at.
ENDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """``places`` of the ids in a row that may be altered; those that have scores stand from ``begin`` to ``end``."""

    places: NDArray[np.int64]
    begin: int
    end: int


def tokens_of(subject: AuditedModel, work: Workload) -> Callable[[NDArray[np.int64]], Tokens]:
    """The tokens of a row of ``work``, for whose task ``why_no_tokens`` is empty; of a pair those of the target.

    Special tokens that stand around a text or in a target are never altered.
    """
    if work.task == SEQ2SEQ_LM:
        special = subject.model.tokenizer.all_special_ids

        def of_target(row: NDArray[np.int64]) -> Tokens:
            begin = 1 + int(row[0])
            places = begin + np.flatnonzero(~np.isin(row[begin:], special))
            return Tokens(places=places, begin=begin, end=len(row))

        return of_target
    if work.task == MASKED_LM:
        frame = frame_of(subject.model.tokenizer)
        front, back = len(frame.front), len(frame.back)
        return lambda row: Tokens(places=np.arange(front, len(row) - back), begin=front, end=len(row) - back)
    first = int(begins_with_bos(subject.model))
    return lambda row: Tokens(places=np.arange(first, len(row)), begin=1, end=len(row))


def why_no_tokens(work: Workload) -> str:
    """Why tokens cannot be altered; empty where they can."""
    if work.task in (CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM):
        return ""
    return f"it alters tokens that a model predicts, which one for {work.task} does not"


def why_no_continuation(work: Workload) -> str:
    """Why nothing can be put in front of a record; empty where the model reads it so."""
    if work.task == CAUSAL_LM:
        return ""
    return f"it puts text in front of a record, which a model for {work.task} does not continue"


class _Neighbours:
    """The mean log-probability of the tokens that stay, less that in copies where others are swapped."""

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_tokens(work)

    def ask(self, subject: AuditedModel, work: Workload) -> Asked:
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

        return Asked(rows=rows, copies=COPIES, score=score)


class _Swaps:
    """How likely the likeliest and the unlikeliest tokens are, less the same of copies with tokens swapped."""

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_tokens(work)

    def ask(self, subject: AuditedModel, work: Workload) -> Asked:
        """See ``Query``."""
        rows = _copies(work, list(map(tokens_of(subject, work), work.rows)))

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            copies = [polarized(answers.of(copy)) for copy in range(begin, begin + COPIES)]
            return polarized(own.of(record)) - float(np.mean(copies))

        return Asked(rows=rows, copies=COPIES, score=score)


class _Repeat:
    """Minus how much likelier a record is after itself: one that is known by heart gains little."""

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        return why_no_continuation(work)

    def ask(self, subject: AuditedModel, work: Workload) -> Asked:
        """See ``Query``."""
        first = int(begins_with_bos(subject.model))
        limit = subject.max_length or 0
        rows = [twice(row, first, limit) for row in work.rows]

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            once = len(work.rows[record]) - 1
            again = answers.of(begin)[once:][1 - first :]
            return float(own.of(record)[: len(again)].mean() - again.mean()) if len(again) else 0.0

        return Asked(rows=rows, copies=1, score=score)


def _copies(work: Workload, tokens: Sequence[Tokens]) -> list[NDArray[np.int64]]:
    """``COPIES`` of each row, with some of its ``tokens`` swapped: the same for every attack, and scored once."""
    return [
        swapped(row, some.places, random)
        for row, some, digest in zip(work.rows, tokens, work.digests, strict=True)
        for random in [draws(digest, "copies")]
        for _ in range(COPIES)
    ]


def swapped(row: NDArray[np.int64], places: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """``row`` with ``SHARE`` of the ids at ``places``, at least 2 where there are, in each other's."""
    count = min(len(places), max(2, round(SHARE * len(places))))
    chosen = places[random.choice(len(places), size=count, replace=False)]
    other = row.copy()
    other[chosen] = row[np.roll(chosen, 1)]
    return other


def twice(row: NDArray[np.int64], first: int, limit: int) -> NDArray[np.int64]:
    """``row`` and again what follows its first ``first`` ids, up to ``limit`` ids."""
    return np.concatenate([row, row[first:]])[:limit]


def polarized(lp: NDArray[np.float64]) -> float:
    """The mean of the highest fifth of ``lp`` [tokens], at least one, and that of the lowest fifth, together."""
    ranked = np.sort(lp)
    count = max(1, int(ENDS * len(lp) + 1e-9))
    return float(ranked[-count:].mean() + ranked[:count].mean())


QUERIES: dict[str, Query] = {"neighbour": _Neighbours(), "pac": _Swaps(), "repeat": _Repeat()}
NEIGHBOUR, PAC, REPEAT = (asking(name) for name in QUERIES)
