"""Each record's own answer: by listing the chances of every answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import ManyWayResponse
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events.row import DeltaOfRatio, Draw, EventVerification, Floats, PlannedAs, fixed_cells
from verify.recompute.step_cells import LossCells, atoms


def _of_answers(event: ManyWayResponse) -> LossCells:
    """Two neighbours' answers and, where there are more, all the others at once."""
    other = 1 / (math.expm1(event.epsilon) + event.answers)
    true = math.exp(event.epsilon) * other
    losses, p = [event.epsilon, -event.epsilon], [true, other]
    if event.answers > 2:
        losses, p = [*losses, 0.0], [*p, (event.answers - 2) * other]
    return atoms(np.array(losses), np.log(p))


def _once(event: ManyWayResponse) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        odds = arb(event.epsilon).exp()
        return ((odds - ratio) / (odds + event.answers - 1)).max(arb(0))

    return delta


def _draw(event: ManyWayResponse) -> Draw:
    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        """Answers of a record whose true one is the first, or the second; by the noise parameter of k-ary response."""
        mixed = event.answers / (math.expm1(event.epsilon) + event.answers)
        told = np.where(rng.random(count) < mixed, rng.integers(0, event.answers, count), 0 if present else 1)
        return np.asarray(np.where(told == 0, event.epsilon, np.where(told == 1, -event.epsilon, 0.0)))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyWayParameters(BudgetParameters):
    """A plan of k-ary randomized response."""

    answer_epsilon: float | None = None
    answers: int | None = None


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="k-ary-response",
        parameters=ManyWayParameters,
        fields={"answer_epsilon": ("epsilon", None), "answers": ("answers", 2), "steps": ("steps", 1)},
        solved={"answer epsilon": "epsilon"},
    ),
    neighbours=lambda event: Adjacency.REPLACE_ONE,
    chances=lambda event: (1.0,),
    drawn=lambda event: None,
    cells=fixed_cells(_of_answers),
    largest_loss=lambda event: event.epsilon,
    once=_once,
    draw=_draw,
    statements={"contribution": ("each example answers once a step, for itself alone",)},
)
