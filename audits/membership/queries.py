"""Additional queries of an attack: rows made from the records, and how the answers become a score.

A row is made from its record alone, or also from records that were set aside for the purpose (``prefixes``), with
random choices seeded by the record's digest. So no score depends on who is a member, and every process makes the same
rows.
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

#: Maps an attack's name to the module with its ``QUERIES``.
_WHERE = {
    **dict.fromkeys(("neighbour", "pac", "repeat"), "audits.membership.neighbours"),
    **dict.fromkeys(("recall", "con-recall"), "audits.membership.prefixes"),
    **dict.fromkeys(("augmented", "label-only"), "audits.membership.augmented"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The token scores of rows: ``values`` [6, total], of which row i has columns ``ends`` [i] to ``ends`` [i + 1]."""

    values: NDArray[np.float32]
    ends: NDArray[np.int64]

    @classmethod
    def to(cls, rows: Sequence[NDArray[Any]], counts: NDArray[np.int64], scores: RowScores) -> Answers:
        """The answers to ``rows``, which have ``counts`` [rows] scores."""
        return cls(values=scores.take(rows, counts), ends=np.concatenate([[0], np.cumsum(counts)]))

    def of(self, row: int, name: str = "lp") -> NDArray[np.float64]:
        """The scores of one row in double precision."""
        begin, end = self.ends[row], self.ends[row + 1]
        return self.values[FIELDS.index(name), begin:end].astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackQueries:
    """The ``rows`` that an attack queries, ``copies`` for each record, and the ``score`` computed from the answers.

    The arguments of ``score`` are the answers for the records themselves, the record's index, the answers to ``rows``,
    and the index of the record's first row.
    """

    rows: Sequence[NDArray[Any]]
    copies: int
    score: Callable[[Answers, int, Answers, int], float]


class Query(Protocol):
    """The queries of one attack."""

    def why_not(self, work: Workload) -> str:
        """Why the attack is not possible; empty if it is."""

    def ask(self, subject: AuditedModel, work: Workload) -> AttackQueries:
        """The rows for all records of ``work``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The queries of all attacks together; ``unasked`` gives the reason why an attack has none."""

    asked: Mapping[str, AttackQueries] = field(default_factory=dict)
    counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[NDArray[Any]]:
        """All rows, attack by attack."""
        return [row for asked in self.asked.values() for row in asked.rows]

    def cost(self, work: Workload) -> str:
        """The total number of tokens scored relative to the records' own, in words; empty without queries.

        Identical rows of several attacks are scored once.
        """
        if not self.asked:
            return ""
        counts = np.concatenate([work.counts, *self.counts.values()])
        distinct = {key(row): count for row, count in zip([*work.rows, *self.rows], counts.tolist(), strict=True)}
        times = sum(distinct.values()) / max(1, int(work.counts.sum()))
        return f"scoring {times:.3g} times the tokens of the records, for {', '.join(self.asked)}"

    def answered(self, work: Workload, scores: RowScores) -> dict[str, NDArray[np.float64]]:
        """The scores of the records by attack, [records]; not finite where the model's answers are not."""
        own_answers = Answers.to(work.rows, work.counts, scores)
        by_attack = {}
        for name, asked in self.asked.items():
            answers = Answers.to(asked.rows, self.counts[name], scores)
            parts = (asked.score(own_answers, i, answers, asked.copies * i) for i in range(len(work.rows)))
            by_attack[name] = np.fromiter(parts, np.float64, len(work.rows))
        return by_attack


def ask(subject: AuditedModel, work: Workload, attacks: Sequence[str]) -> Questions:
    """The queries about ``work`` of those ``attacks`` that have any."""
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
    """The attack ``name``, which scores the answers to its queries."""
    return ScoreAttack(
        name=name,
        score=lambda candidates, _: candidates.answered[name],
        missing=partial(_missing, name),
        alone=_WHERE.get(name) != "audits.membership.prefixes",
    )


def _missing(name: str, candidates: Candidates) -> str:
    scores = candidates.answered.get(name)
    if scores is None:
        return candidates.unasked.get(name, "it asks the model more than once about a record; give --thorough")
    return "" if np.isfinite(scores).all() else "the model gives NaN or infinite scores to what it asks"


def draws(digest: bytes, purpose: str) -> np.random.Generator:
    """A generator seeded by a record's digest and a purpose, which anyone can reproduce."""
    return np.random.default_rng([int.from_bytes(digest, "little"), int.from_bytes(purpose.encode(), "little")])
