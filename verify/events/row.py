"""What ``verify`` asks of a kind of event: all of it stated again, apart from the accounting that it checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privctl.domain.events import Batches, Event
from privctl.domain.guarantee import Adjacency, PrivacyUnit
from privctl.reports.parameters import BudgetParameters
from verify.recompute.bound_pair import BoundPair
from verify.recompute.step_cells import CellReach, LossCells

Kind = TypeVar("Kind", bound=Event)
Floats = NDArray[np.float64]

#: A number of losses log(p / q), drawn with the record (True) or without it.
Draw = Callable[[np.random.Generator, int, bool], Floats]
#: The cells of one step, of a loss at most as wide as it is told.
CellMaker = Callable[[float, CellReach], LossCells]
#: Delta of one step at e^epsilon, the worse order's, in ball arithmetic.
DeltaOfRatio = Callable[[arb], arb]


def _nothing(said: BudgetParameters) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAs:
    """How a report of ``privctl account`` speaks of an event.

    ``mechanism`` is the parameter of that name, ``parameters`` the class of all of them. ``fields`` are the parameters
    that give a field of the event, with what holds where they were not given (None: not known); ``solved`` names of
    what may have been searched, with their fields; ``more`` gives further fields that follow from the parameters.
    """

    mechanism: str
    parameters: type[BudgetParameters] = BudgetParameters
    fields: Mapping[str, tuple[str, Any]]
    solved: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Any], Mapping[str, Any]] = _nothing


#: Parameters of any event whose steps take a share of the data.
OF_STEPS: Mapping[str, tuple[str, Any]] = {"sample_rate": ("sample_rate", 1.0), "steps": ("steps", 1)}


def _none(event: Event) -> None:
    return None


def _yes(event: Event) -> bool:
    return True


def _zero(event: Event) -> float:
    return 0.0


def _endless(event: Event) -> float:
    return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventVerification(Generic[Kind]):
    """One kind of event to the verifier, a row of ``ROWS``.

    ``neighbours`` its bounds speak of, and whose presence (``unit``); ``chances`` of taking part in a step, of each
    protected record; ``drawn``, the condition on its batches, None where there is none. ``cells`` makes the cells of
    one step, told True those that some data set meets.

    The others help where they apply. ``squared_shift`` is that of the one Gaussian that all steps are worth, ``met``
    whether some data set has its cells from above, ``tilt`` how far tilting may go, ``largest_loss`` that of one step.
    ``once`` gives the delta of one step, ``draw`` losses of one step, ``toy`` a training of some steps to try; None
    where there is none. ``information`` are nats about a secret. ``noise`` is its noise multiplier where it has one;
    ``with_noise``, the event at another, where guarantees on it state theirs. ``in_floats``: its noise is written in
    floating point. ``statements`` are those its assumptions may have beyond what all kinds share, as in
    ``verify.wording``.
    """

    planned: PlannedAs
    neighbours: Callable[[Kind], Adjacency]
    chances: Callable[[Kind], Sequence[float]]
    drawn: Callable[[Kind], Batches | None]
    cells: Callable[[Kind, bool], CellMaker]
    unit: PrivacyUnit = PrivacyUnit.EXAMPLE
    squared_shift: Callable[[Kind], float | None] = _none
    met: Callable[[Kind], bool] = _yes
    tilt: Callable[[Kind], float] = _zero
    largest_loss: Callable[[Kind], float] = _endless
    once: Callable[[Kind], DeltaOfRatio | None] = _none
    draw: Callable[[Kind], Draw | None] = _none
    toy: Callable[[Kind], Callable[[int], Draw] | None] = _none
    information: Callable[[Kind], BoundPair | None] = _none
    noise: Callable[[Kind], float | None] = _none
    with_noise: Callable[[Kind, float], Kind] | None = None
    in_floats: bool = False
    statements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def poisson_unless_all(rate: float) -> Batches | None:
    """The condition on batches that each record enters by a coin of its own."""
    return None if rate == 1 else Batches.POISSON
