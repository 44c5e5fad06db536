"""k-ary randomized response: each record's own answer, with the probability of every answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import ManyWayResponse
from privctl.domain.guarantee import Adjacency
from privctl.reports.parameters import BudgetParameters
from verify.events.row import DeltaOfRatio, Draw, EventVerification, Floats, PlannedAs, fixed_cells
from verify.losses.cells import LossCells, atoms


def _answer_cells(event: ManyWayResponse) -> LossCells:
    """Outcomes for two neighbours: their two true answers and, if there are more, all others merged.

    Against a record that answers at random: the true answer, and all others merged.
    """
    other = 1 / (math.expm1(event.epsilon) + event.answers)
    true = math.exp(event.epsilon) * other
    if event.neighbours is Adjacency.ZERO_OUT:
        present = np.array([true, other * (event.answers - 1)])
        return atoms(np.log(np.array([true, other]) * event.answers), np.log(present))
    losses, p = [event.epsilon, -event.epsilon], [true, other]
    if event.answers > 2:
        losses, p = [*losses, 0.0], [*p, (event.answers - 2) * other]
    return atoms(np.array(losses), np.log(p))


def _once(event: ManyWayResponse) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        odds = arb(event.epsilon).exp()
        if event.neighbours is Adjacency.ZERO_OUT:
            total = odds + event.answers - 1
            forward = odds / total - ratio / event.answers
            backward = (1 - ratio * event.answers / total) * (event.answers - 1) / event.answers
            return forward.max(backward).max(arb(0))
        return ((odds - ratio) / (odds + event.answers - 1)).max(arb(0))

    return delta


def _largest(event: ManyWayResponse) -> float:
    if event.neighbours is Adjacency.REPLACE_ONE:
        return event.epsilon
    return event.epsilon + math.log(event.answers) - math.log(math.expm1(event.epsilon) + event.answers)


def _largest_back(event: ManyWayResponse) -> float:
    if event.neighbours is Adjacency.REPLACE_ONE:
        return event.epsilon
    return math.log1p(math.expm1(event.epsilon) / event.answers)


def _draw(event: ManyWayResponse) -> Draw:
    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        """Draws answers of a record whose true answer is the first (present) or the second, and their losses."""
        mixed = event.answers / (math.expm1(event.epsilon) + event.answers)
        at_random = np.ones(count, bool) if event.neighbours is Adjacency.ZERO_OUT and not present else None
        at_random = rng.random(count) < mixed if at_random is None else at_random
        answer = np.where(at_random, rng.integers(0, event.answers, count), 0 if present else 1)
        if event.neighbours is Adjacency.ZERO_OUT:
            chance = (1 - mixed) + mixed / event.answers, mixed / event.answers
            return np.asarray(np.log(event.answers * np.where(answer == 0, *chance)))
        return np.asarray(np.where(answer == 0, event.epsilon, np.where(answer == 1, -event.epsilon, 0.0)))

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
    neighbours=lambda event: event.neighbours,
    chances=lambda event: (1.0,),
    drawn=lambda event: None,
    cells=fixed_cells(_answer_cells),
    largest_loss=_largest,
    largest_back=_largest_back,
    once=_once,
    draw=_draw,
    statements={"contribution": ("each example answers once a step, for itself alone",)},
)
