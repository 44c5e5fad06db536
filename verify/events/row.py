"""What ``verify`` needs to know about a kind of event, stated independently of the accounting it checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privctl.domain.event import Batches, Event, SampledEvent
from privctl.domain.guarantee import Adjacency, PrivacyUnit
from privctl.reports.parameters import BudgetParameters
from verify.losses.bound_pair import BoundPair
from verify.losses.cells import CellReach, LossCells

Kind = TypeVar("Kind", bound=Event)
Floats = NDArray[np.float64]

#: Draws a number of losses log(p / q), with the record (True) or without it.
Draw = Callable[[np.random.Generator, int, bool], Floats]
#: Makes the cells of one step's loss, no wider than the given width.
CellMaker = Callable[[float, CellReach], LossCells]
#: Delta of one step at e^epsilon for the worse order of neighbours, in ball arithmetic.
DeltaOfRatio = Callable[[arb], arb]


def _no_fields(parameters: BudgetParameters) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAs:
    """How a report of ``privctl account`` describes an event.

    ``mechanism`` is the parameter of that name, and ``parameters`` the class of all parameters. ``fields`` maps a
    parameter to its event field and default (None if unknown). ``solved`` maps the name of a quantity that was solved
    for to its field. ``more`` gives further fields that follow from the parameters.
    """

    mechanism: str
    parameters: type[BudgetParameters] = BudgetParameters
    fields: Mapping[str, tuple[str, Any]]
    solved: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Any], Mapping[str, Any]] = _no_fields


#: Parameters of any event whose steps sample the data.
OF_STEPS: Mapping[str, tuple[str, Any]] = {"sample_rate": ("sample_rate", 1.0), "steps": ("steps", 1)}


def _no_value(event: Event) -> None:
    return None


def _always(event: Event) -> bool:
    return True


def _one(event: Event) -> int:
    return 1


def _zero(event: Event) -> float:
    return 0.0


def _infinite(event: Event) -> float:
    return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventVerification(Generic[Kind]):
    """How one kind of event is verified: a row of ``ROWS``.

    ``neighbours`` is the adjacency for which its bounds hold, and ``unit`` the unit of privacy. ``chances`` gives the
    probability of each protected record to take part in a step. ``drawn`` is the condition on its batches, None if
    there is none. ``cells`` makes the cells of one step; with True, only those that some data set attains.

    The other fields are optional. ``group_size`` is the number of records in which neighbours differ. ``parts`` lists
    smaller events with their multiplicities that together are the event, if these are not its steps. ``joined`` merges
    all events of the kind in a ledger into one step, if that is equivalent. ``squared_shift`` is that of the single
    Gaussian equivalent to all steps. ``zeroed`` is whether cells for removing a record also bound zeroing it.
    ``attained`` is whether some data set attains the cells used for upper bounds. ``tilt`` scales the tilting exponent.
    ``largest_loss`` is that of one step, and ``largest_back`` that in the other order of the neighbours if it may
    differ. ``once`` gives the delta of one step, ``draw`` losses of one step, and ``toy`` a small training to simulate;
    each is None if there is none. ``information`` is the nats about a secret. ``noise`` is the noise multiplier, if
    there is one, and ``with_noise`` the event with another one, for kinds whose guarantees state it. ``in_floats`` is
    whether its noise is added in floating point. ``statements`` are the texts its assumptions may have beyond those of
    all kinds, as in ``verify.texts``.
    """

    planned: PlannedAs
    neighbours: Callable[[Kind], Adjacency]
    chances: Callable[[Kind], Sequence[float]]
    drawn: Callable[[Kind], Batches | None]
    cells: Callable[[Kind, bool], CellMaker]
    unit: PrivacyUnit = PrivacyUnit.EXAMPLE
    group_size: Callable[[Kind], int] = _one
    parts: Callable[[Kind], Sequence[tuple[Event, int]] | None] = _no_value
    joined: Callable[[Sequence[Kind]], Kind] | None = None
    squared_shift: Callable[[Kind], float | None] = _no_value
    zeroed: Callable[[Kind], bool] = _always
    attained: Callable[[Kind], bool] = _always
    tilt: Callable[[Kind], float] = _zero
    largest_loss: Callable[[Kind], float] = _infinite
    largest_back: Callable[[Kind], float] | None = None
    once: Callable[[Kind], DeltaOfRatio | None] = _no_value
    draw: Callable[[Kind], Draw | None] = _no_value
    toy: Callable[[Kind], Callable[[int], Draw] | None] = _no_value
    information: Callable[[Kind], BoundPair | None] = _no_value
    noise: Callable[[Kind], float | None] = _no_value
    with_noise: Callable[[Kind, float], Kind] | None = None
    in_floats: bool = False
    statements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def poisson_unless_all(rate: float) -> Batches | None:
    """Poisson batches, or None if every record takes part."""
    return None if rate == 1 else Batches.POISSON


def _added_or_removed(event: Event) -> Adjacency:
    return Adjacency.ADD_OR_REMOVE


def _single_rate(event: SampledEvent) -> Sequence[float]:
    return (event.sample_rate,)


def _by_coins(event: SampledEvent) -> Batches | None:
    return poisson_unless_all(event.sample_rate)


SampledKind = TypeVar("SampledKind", bound=SampledEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonVerification(EventVerification[SampledKind]):
    """A kind on Poisson batches of one rate, whose bounds hold for adding or removing a record."""

    neighbours: Callable[[SampledKind], Adjacency] = _added_or_removed
    chances: Callable[[SampledKind], Sequence[float]] = _single_rate
    drawn: Callable[[SampledKind], Batches | None] = _by_coins


def fixed_cells(law: Callable[[Kind], LossCells]) -> Callable[[Kind, bool], CellMaker]:
    """``cells`` of a kind with few outcomes: those of ``law``, regardless of the width, which are attained."""
    return lambda event, attained_only: lambda width, reach: law(event)


def delta_of_outcomes(laws: Iterable[tuple[arb, arb]], rate: float, ratio: arb) -> arb:
    """Delta at e^epsilon = ``ratio`` in the worse order, from the masses of the outcomes.

    ``laws`` has each outcome's mass with the record in the batch and without it; ``rate`` is the sampling rate.
    """
    chance, totals = arb(rate), [arb(0), arb(0)]
    for with_record, without_record in laws:
        present = (1 - chance) * without_record + chance * with_record
        totals[0] += (present - ratio * without_record).max(arb(0))
        totals[1] += (without_record - ratio * present).max(arb(0))
    return totals[0].max(totals[1])
