"""The attacks on every secret: its rank among candidates by the loss of one or two models, and its completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from audits.canaries.completion import Completion
from audits.scores.scorer import RowScores
from audits.secrets.beam import BeamHits, beam_hits
from audits.secrets.candidates import Problem
from audits.secrets.rows import Reader, SecretSpan
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredModel:
    """A model with the shared scores of all rows."""

    model: LanguageModel
    row_scores: RowScores


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ``rank`` [secrets] of each true value among ``count`` [secrets] values: 1 is best, ties count against it."""

    rank: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def ranked_first(self) -> NDArray[np.bool_]:
        """Whether the true value alone ranks first, [secrets]."""
        return np.asarray(self.rank == 1)

    @property
    def bits(self) -> NDArray[np.float64]:
        """log2 of count over rank, [secrets]; by chance it is t or more with probability at most 2^-t."""
        return np.asarray(np.log2(self.count) - np.log2(self.rank))

    def select(self, chosen: NDArray[np.bool_]) -> Ranks:
        """The ranks of the ``chosen`` secrets."""
        return Ranks(rank=self.rank[chosen], count=self.count[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretAnswers:
    """One model's results for each secret, [secrets].

    ``completion`` is the best ``Completion`` over all occurrences of the secret, ``logp`` (nats) the largest
    log-probability of writing it at one of them.
    """

    ranks: Ranks
    loss: NDArray[np.float64]
    completion: NDArray[np.uint8]
    logp: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretAttackResult:
    """The results on the ``problems`` that could be attacked; ``before`` and ``calibrated`` need a base model.

    ``calibrated`` ranks by the loss minus that of the base model. ``lost`` are problems with NaN or infinite scores.
    ``beam`` is None if it was not requested or is not possible.
    """

    problems: tuple[Problem, ...]
    after: SecretAnswers
    before: SecretAnswers | None
    calibrated: Ranks | None
    lost: tuple[Problem, ...]
    beam: BeamHits | None = None

    @property
    def control(self) -> NDArray[np.bool_]:
        """Secrets that were never drawn for training, [secrets]."""
        return np.array([problem.target.control for problem in self.problems], dtype=np.bool_)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Secrets of held-out records, [secrets]."""
        return np.array([problem.target.held_out for problem in self.problems], dtype=np.bool_)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Secrets of records that the model was trained on, [secrets]."""
        return ~(self.control | self.held_out)

    @property
    def designed(self) -> NDArray[np.bool_]:
        """Secrets whose values were drawn from the same distribution as their candidates, [secrets]."""
        return np.array([problem.target.format is not None for problem in self.problems], dtype=np.bool_)

    @property
    def pools(self) -> NDArray[np.int64]:
        """The number of values that the candidates of each planted canary were drawn from, [secrets]; 0 for others."""
        return np.array([problem.pool for problem in self.problems], dtype=np.int64)

    @property
    def kinds(self) -> NDArray[np.str_]:
        """The kind of each secret, [secrets]."""
        return np.array([problem.target.kind for problem in self.problems], dtype=np.str_)


def attack(
    reader: Reader,
    problems: Sequence[Problem],
    after: ScoredModel,
    before: ScoredModel | None,
    advance: Advance = silent,
    workers: Workers = ALONE,
    width: int | None = None,
) -> SecretAttackResult:
    """Attack every secret with both models; ``advance`` counts each secret once per model. ``workers`` share them.

    ``width`` is that of an additional beam search with the trained model; None for no search.
    """
    models = [after] if before is None else [after, before]

    def losses(scored_model: ScoredModel, problem: Problem) -> torch.Tensor:
        return torch.from_numpy(_losses(reader, scored_model.model, problem, advance))[:, None]

    tables = [
        [column[:, 0].numpy() for column in workers.spread(problems, partial(losses, scored_model), 1)]
        for scored_model in models
    ]
    finite = [
        bool(all(np.isfinite(table[i][0]) and np.isfinite(table[i]).sum() > 1 for table in tables))
        for i in range(len(problems))
    ]
    attackable = [i for i, fine in enumerate(finite) if fine]
    attacked = tuple(problems[i] for i in attackable)
    answers = [
        _answers(reader, scored_model, attacked, [table[i] for i in attackable], workers)
        for scored_model, table in zip(models, tables, strict=True)
    ]
    calibrated = None
    if before is not None:
        calibrated = _ranks([tables[0][i] - tables[1][i] for i in attackable])
    return SecretAttackResult(
        problems=attacked,
        after=answers[0],
        before=answers[1] if before is not None else None,
        calibrated=calibrated,
        beam=None if width is None else beam_hits(after.model, attacked, width, workers),
        lost=tuple(problems[i] for i, fine in enumerate(finite) if not fine),
    )


def _losses(reader: Reader, model: LanguageModel, problem: Problem, advance: Advance) -> NDArray[np.float64]:
    """The loss of every candidate, summed over the occurrences of the secret."""
    total = np.zeros(problem.count)
    for places in problem.places:
        groups: dict[tuple[bytes, int, bytes], list[int]] = {}
        for i, place in enumerate(places):
            groups.setdefault(place.kind, []).append(i)
        for members in groups.values():
            total[members] += reader.losses(model, [places[i] for i in members])
    advance(1)
    return total


def _ranks(tables: Sequence[NDArray[np.float64]]) -> Ranks:
    """Ranks of the true values, which come first in each table; candidates without a finite loss are dropped."""
    finite = [table[np.isfinite(table)] for table in tables]
    return Ranks(
        rank=np.array([(table <= table[0]).sum() for table in finite], dtype=np.int64),
        count=np.array([len(table) for table in finite], dtype=np.int64),
    )


def _answers(
    reader: Reader,
    scored_model: ScoredModel,
    problems: Sequence[Problem],
    tables: Sequence[NDArray[np.float64]],
    workers: Workers,
) -> SecretAnswers:
    places: list[SecretSpan] = [spans[0] for problem in problems for spans in problem.places]
    completions = reader.complete(scored_model.model, places, scored_model.row_scores, workers)
    starts = np.cumsum([0, *(len(problem.places) for problem in problems)])[:-1]
    order = np.array([Completion.SAFE, Completion.UNDECIDED, Completion.DISCLOSED], dtype=np.uint8)
    graded = np.argsort(order)[completions.states]  # a certain disclosure outranks an undecided one
    best = np.maximum.reduceat(graded, starts) if len(problems) else np.zeros(0, dtype=np.int64)
    logp = np.fmax.reduceat(completions.logp, starts) if len(problems) else np.zeros(0)
    return SecretAnswers(
        ranks=_ranks(tables),
        loss=np.array([table[0] for table in tables]),
        completion=order[best],
        logp=np.where(np.isnan(logp), -np.inf, logp),
    )
