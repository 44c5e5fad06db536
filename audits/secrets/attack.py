"""The attacks on every secret: its rank among candidates, by one model's loss or by two, and its completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries.completions import Completion
from audits.scores.scorer import RowScores
from audits.secrets.candidates import Problem
from audits.secrets.rows import Reader, SecretSpan
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredModel:
    """A model with the shared scores of all rows."""

    model: LanguageModel
    book: RowScores


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ``rank`` [secrets] of each true value among ``count`` [secrets]: 1 is told, and ties count against it."""

    rank: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def told(self) -> NDArray[np.bool_]:
        """Whether the true value is the model's one first choice, [secrets]."""
        return np.asarray(self.rank == 1)

    @property
    def bits(self) -> NDArray[np.float64]:
        """log2 of count over rank, [secrets]: chance gives t bits or more with probability at most 2^-t."""
        return np.asarray(np.log2(self.count) - np.log2(self.rank))

    def of(self, chosen: NDArray[np.bool_]) -> Ranks:
        """Those of some secrets."""
        return Ranks(rank=self.rank[chosen], count=self.count[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretAnswers:
    """What one model says of each secret, [secrets].

    ``completion`` is the best ``Completion`` over the places it was asked in, ``logp`` (nats) the greatest probability
    of writing it in one of them.
    """

    ranks: Ranks
    loss: NDArray[np.float64]
    completion: NDArray[np.uint8]
    logp: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretAttackResult:
    """What the attacks found of the ``problems`` that could be asked; ``before`` and ``calibrated`` need a base model.

    ``calibrated`` ranks by the loss less that of the base model. ``lost`` are problems with NaN or infinite scores.
    """

    problems: tuple[Problem, ...]
    after: SecretAnswers
    before: SecretAnswers | None
    calibrated: Ranks | None
    lost: tuple[Problem, ...]

    @property
    def control(self) -> NDArray[np.bool_]:
        """Secrets that were never drawn for training, [secrets]."""
        return np.array([each.target.control for each in self.problems], dtype=np.bool_)

    @property
    def designed(self) -> NDArray[np.bool_]:
        """Secrets whose values were drawn like their candidates, [secrets]."""
        return np.array([each.target.format is not None for each in self.problems], dtype=np.bool_)

    @property
    def kinds(self) -> NDArray[np.str_]:
        """What kind each secret is of, [secrets]."""
        return np.array([each.target.kind for each in self.problems], dtype=np.str_)


def attack(
    reader: Reader,
    problems: Sequence[Problem],
    after: ScoredModel,
    before: ScoredModel | None,
    advance: Advance = silent,
) -> SecretAttackResult:
    """Ask both models for every secret; ``advance`` counts the secrets asked for, once for each model."""
    models = [after] if before is None else [after, before]
    tables = [[_losses(reader, asked.model, each, advance) for each in problems] for asked in models]
    finite = [
        bool(all(np.isfinite(table[i][0]) and np.isfinite(table[i]).sum() > 1 for table in tables))
        for i in range(len(problems))
    ]
    kept = [i for i, fine in enumerate(finite) if fine]
    some = tuple(problems[i] for i in kept)
    answers = [
        _answers(reader, asked, some, [table[i] for i in kept]) for asked, table in zip(models, tables, strict=True)
    ]
    calibrated = None
    if before is not None:
        calibrated = _ranks([tables[0][i] - tables[1][i] for i in kept])
    return SecretAttackResult(
        problems=some,
        after=answers[0],
        before=answers[1] if before is not None else None,
        calibrated=calibrated,
        lost=tuple(problems[i] for i, fine in enumerate(finite) if not fine),
    )


def _losses(reader: Reader, model: LanguageModel, each: Problem, advance: Advance) -> NDArray[np.float64]:
    """The loss of every candidate, summed over the places where it is asked for."""
    total = np.zeros(each.count)
    for places in each.places:
        groups: dict[tuple[bytes, int, bytes], list[int]] = {}
        for i, place in enumerate(places):
            groups.setdefault(place.kind, []).append(i)
        for members in groups.values():
            total[members] += reader.losses(model, [places[i] for i in members])
    advance(1)
    return total


def _ranks(tables: Sequence[NDArray[np.float64]]) -> Ranks:
    """The true value is the first of each; candidates without a finite loss are no candidates."""
    finite = [table[np.isfinite(table)] for table in tables]
    return Ranks(
        rank=np.array([(table <= table[0]).sum() for table in finite], dtype=np.int64),
        count=np.array([len(table) for table in finite], dtype=np.int64),
    )


def _answers(
    reader: Reader, asked: ScoredModel, problems: Sequence[Problem], tables: Sequence[NDArray[np.float64]]
) -> SecretAnswers:
    places: list[SecretSpan] = [some[0] for each in problems for some in each.places]
    found = reader.completed(asked.model, places, asked.book)
    starts = np.cumsum([0, *(len(each.places) for each in problems)])[:-1]
    order = np.array([Completion.SAFE, Completion.UNDECIDED, Completion.DISCLOSED], dtype=np.uint8)
    graded = np.argsort(order)[found.states]  # a place that surely discloses counts before one that may
    best = np.maximum.reduceat(graded, starts) if len(problems) else np.zeros(0, dtype=np.int64)
    logp = np.fmax.reduceat(found.logp, starts) if len(problems) else np.zeros(0)
    return SecretAnswers(
        ranks=_ranks(tables),
        loss=np.array([table[0] for table in tables]),
        completion=order[best],
        logp=np.where(np.isnan(logp), -np.inf, logp),
    )
