"""What an attack asks the model beyond the records themselves: rows made of them, and how answers become a score.

A row is made from its record alone, or from records that were put aside for the purpose (``prefixes``), and drawn by
the record's digest. So no score knows who is a member, and every process draws the same rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack
from audits.scores.scorer import RowScores, key
from audits.scores.table import FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.membership.workload import Workload
    from audits.scores.subject import AuditedModel

#: Attack name -> the module with its ``QUERIES``.
_WHERE = {
    **dict.fromkeys(("neighbour", "pac", "repeat"), "audits.membership.neighbours"),
    **dict.fromkeys(("recall", "con-recall"), "audits.membership.prefixes"),
    **dict.fromkeys(("augmented", "label-only"), "audits.membership.augmented"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The scores of rows, ``values`` [6, total] and ``ends`` [rows + 1] of each in it."""

    values: NDArray[np.float32]
    ends: NDArray[np.int64]

    @classmethod
    def to(cls, rows: Sequence[NDArray[Any]], counts: NDArray[np.int64], scores: RowScores) -> Answers:
        """The answers to ``rows``, of which each gets ``counts`` scores."""
        return cls(values=scores.take(rows, counts), ends=np.concatenate([[0], np.cumsum(counts)]))

    def of(self, row: int, name: str = "lp") -> NDArray[np.float64]:
        """The scores of one row, in double precision."""
        begin, end = self.ends[row], self.ends[row + 1]
        return self.values[FIELDS.index(name), begin:end].astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``rows`` that an attack asks, ``copies`` for each record, and the ``score`` of a record's answers.

    ``score`` takes what the model says of the record itself, its answers, and the number of the first of its rows.
    """

    rows: Sequence[NDArray[Any]]
    copies: int
    score: Callable[[Answers, int, Answers, int], float]


class Query(Protocol):
    """What one attack asks of the model."""

    def why_not(self, work: Workload) -> str:
        """Why it cannot be asked; empty where it can."""

    def ask(self, subject: AuditedModel, work: Workload) -> Asked:
        """The rows for every record of ``work``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What all attacks together ask; ``unasked`` says of an attack why it asks nothing."""

    asked: Mapping[str, Asked] = field(default_factory=dict)
    counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[NDArray[Any]]:
        """All rows, attack after attack."""
        return [row for asked in self.asked.values() for row in asked.rows]

    def cost(self, work: Workload) -> str:
        """How many times the records' tokens are scored, and for which attacks; empty where only once.

        What several attacks ask is scored once.
        """
        if not self.asked:
            return ""
        counts = np.concatenate([work.counts, *self.counts.values()])
        distinct = {key(row): count for row, count in zip([*work.rows, *self.rows], counts.tolist(), strict=True)}
        times = sum(distinct.values()) / max(1, int(work.counts.sum()))
        return f"scoring {times:.3g} times the tokens of the records, for {', '.join(self.asked)}"

    def answered(self, work: Workload, scores: RowScores) -> dict[str, NDArray[np.float64]]:
        """The score of each record by attack, [records]; not finite where the model's answers are not."""
        own = Answers.to(work.rows, work.counts, scores)
        found = {}
        for name, asked in self.asked.items():
            answers = Answers.to(asked.rows, self.counts[name], scores)
            each = (asked.score(own, i, answers, asked.copies * i) for i in range(len(work.rows)))
            found[name] = np.fromiter(each, np.float64, len(work.rows))
        return found


def ask(subject: AuditedModel, work: Workload, attacks: Sequence[str]) -> Questions:
    """What those of ``attacks`` that ask anything ask about ``work``."""
    asked, counts, unasked = {}, {}, {}
    for name in attacks:
        if name not in _WHERE:
            continue
        query: Query = importlib.import_module(_WHERE[name]).QUERIES[name]
        if reason := query.why_not(work):
            unasked[name] = reason
            continue
        asked[name] = query.ask(subject, work)
        counts[name] = subject.scorer.counts(asked[name].rows)
        assert counts[name].all(), "what is asked has an answer"
    return Questions(asked=asked, counts=counts, unasked=unasked)


def asking(name: str) -> ScoreAttack:
    """The attack ``name``, whose scores come from answers; they depend on no other record that is judged."""
    return ScoreAttack(
        name=name,
        score=lambda candidates, _: candidates.answered[name],
        missing=partial(_missing, name),
        alone=_WHERE.get(name) != "audits.membership.prefixes",
    )


def _missing(name: str, candidates: Candidates) -> str:
    found = candidates.answered.get(name)
    if found is None:
        return candidates.unasked.get(name, "it asks the model more than once about a record; give --thorough")
    return "" if np.isfinite(found).all() else "the model gives NaN or infinite scores to what it asks"


def draws(digest: bytes, purpose: str) -> np.random.Generator:
    """Random numbers that a record's digest and a purpose decide; anybody can draw them again."""
    return np.random.default_rng([int.from_bytes(digest, "little"), int.from_bytes(purpose.encode(), "little")])
