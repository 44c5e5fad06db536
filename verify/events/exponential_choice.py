"""The exponential mechanism: delta at epsilon x is (1 - e^((x - e) / 2))^2 / (1 - e^-e); and its loss distribution.

A mechanism whose losses lie in [t - e, t] has the largest delta at x if only the two end points occur. That delta,
(1 - e^(t - e)) (1 - e^(x - t)) / (1 - e^-e), is largest for t halfway between x and e.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import ExponentialChoice
from privctl.reports.parameters import BudgetParameters
from verify.events.row import CellMaker, DeltaOfRatio, Draw, EventVerification, Floats, PlannedAs
from verify.losses.cells import MOST_CELLS, LossCells, TooFineError, atoms


def _cells(event: ExponentialChoice, attained_only: bool) -> CellMaker:
    if attained_only:  # two candidates, where the score of one increases as that of the other decreases
        half = event.epsilon / 2
        logs = -np.log1p(np.exp(np.array([half, -half])))
        return lambda width, reach: atoms(np.array([-half, half]), logs)
    return lambda width, reach: _range_cells(event.epsilon, width)


def _range_cells(epsilon: float, width: float) -> LossCells:
    count = max(2, math.ceil(2 * epsilon / width))
    if count > MOST_CELLS:
        raise TooFineError(count / MOST_CELLS)
    edges = np.linspace(-epsilon, epsilon, count + 1)
    # Integrals of the density e^((l - e) / 2) / 2 / (1 - e^-e); without the record it is mirrored.
    growth = -math.expm1(-(edges[1] - edges[0]) / 2) / -math.expm1(-epsilon)
    p = np.exp((edges[1:] - epsilon) / 2) * growth
    q = p[::-1]
    up = (p - q * np.exp(edges[:-1])) / -np.expm1(edges[:-1] - edges[1:])
    return LossCells(low=edges[:-1], high=edges[1:], p=p, q=q, up=np.clip(up, 0.0, p))


def _once(event: ExponentialChoice) -> DeltaOfRatio:
    def delta(ratio: arb) -> arb:
        left = (1 - (ratio / arb(event.epsilon).exp()).sqrt()).max(arb(0))
        return left * left / (1 - (-arb(event.epsilon)).exp())

    return delta


def _draw(event: ExponentialChoice) -> Draw:
    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        above = rng.random(count)
        losses = event.epsilon + 2 * np.log1p(above * math.expm1(-event.epsilon))
        return np.asarray(losses if present else -losses)

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialParameters(BudgetParameters):
    """A plan of choices by the exponential mechanism."""

    range_epsilon: float | None = None


ROW = EventVerification(
    planned=PlannedAs(
        mechanism="exponential",
        parameters=ExponentialParameters,
        fields={"range_epsilon": ("epsilon", None), "steps": ("steps", 1)},
        solved={"range epsilon": "epsilon"},
    ),
    neighbours=lambda event: event.neighbours,
    chances=lambda event: (1.0,),
    drawn=lambda event: None,
    cells=_cells,
    attained=lambda event: False,
    largest_loss=lambda event: event.epsilon,
    once=_once,
    draw=_draw,
    statements={
        "contribution": ("each step is an exponential mechanism of the stated epsilon for these neighbours",),
    },
)
