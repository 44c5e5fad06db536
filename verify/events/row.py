"""What ``verify`` needs to know of a kind of event, restated independently of the accounting it checks."""

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

#: Draws that many losses log(p / q), with the record (True) or without it.
Draw = Callable[[np.random.Generator, int, bool], Floats]
#: The cells of one step's loss, no wider than the given width.
CellMaker = Callable[[float, CellReach], LossCells]
#: Delta of one step at e^epsilon for the worse order of neighbours, in ball arithmetic.
DeltaOfRatio = Callable[[arb], arb]


def _nothing(parameters: BudgetParameters) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAs:
    """How a report of ``privctl account`` describes an event.

    ``mechanism`` is the parameter of that name, ``parameters`` the class of all of them. ``fields``: parameter ->
    (event field, default; None: unknown). ``solved``: name of a searched quantity -> its field. ``more`` gives further
    fields that follow from the parameters.
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


def _one(event: Event) -> int:
    return 1


def _zero(event: Event) -> float:
    return 0.0


def _endless(event: Event) -> float:
    return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventVerification(Generic[Kind]):
    """One kind of event to the verifier, a row of ``ROWS``.

    ``neighbours`` is the adjacency for which its bounds hold, ``unit`` whose presence they protect. ``chances`` are the
    chances of each protected record to take part in a step. ``drawn`` is the condition on its batches, None where there
    is none. ``cells`` makes the cells of one step; with True, only those that some data set attains.

    The others help where they apply. ``alike`` is how many records its neighbours differ by. ``parts`` are smaller
    events, each with how often it occurs, that together are the event, where these are not its steps. ``joined`` makes
    one step of all events of the kind in a ledger, where that is what they amount to. ``squared_shift`` is that of the
    single Gaussian equivalent to all steps, ``zeroed`` whether cells for a record removed bound one zeroed, too,
    ``met`` whether some data set attains its cells from above, ``tilt`` how far tilting may go, ``largest_loss`` that
    of one step, ``largest_back`` that in the other order of the neighbours where it may be larger. ``once`` gives the
    delta of one step, ``draw`` losses of one step, ``toy`` a small training to simulate; None where there is none.
    ``information`` is the nats about a secret. ``noise`` is its noise multiplier where it has one; ``with_noise``, the
    event with another noise multiplier, for kinds whose guarantees state one.
    ``in_floats``: its noise is written in floating point. ``statements`` are those its assumptions may have beyond what
    all kinds share, as in ``verify.texts``.
    """

    planned: PlannedAs
    neighbours: Callable[[Kind], Adjacency]
    chances: Callable[[Kind], Sequence[float]]
    drawn: Callable[[Kind], Batches | None]
    cells: Callable[[Kind, bool], CellMaker]
    unit: PrivacyUnit = PrivacyUnit.EXAMPLE
    alike: Callable[[Kind], int] = _one
    parts: Callable[[Kind], Sequence[tuple[Event, int]] | None] = _none
    joined: Callable[[Sequence[Kind]], Kind] | None = None
    squared_shift: Callable[[Kind], float | None] = _none
    zeroed: Callable[[Kind], bool] = _yes
    met: Callable[[Kind], bool] = _yes
    tilt: Callable[[Kind], float] = _zero
    largest_loss: Callable[[Kind], float] = _endless
    largest_back: Callable[[Kind], float] | None = None
    once: Callable[[Kind], DeltaOfRatio | None] = _none
    draw: Callable[[Kind], Draw | None] = _none
    toy: Callable[[Kind], Callable[[int], Draw] | None] = _none
    information: Callable[[Kind], BoundPair | None] = _none
    noise: Callable[[Kind], float | None] = _none
    with_noise: Callable[[Kind, float], Kind] | None = None
    in_floats: bool = False
    statements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def poisson_unless_all(rate: float) -> Batches | None:
    """Poisson, unless every record takes part."""
    return None if rate == 1 else Batches.POISSON


def _added_or_removed(event: Event) -> Adjacency:
    return Adjacency.ADD_OR_REMOVE


def _alike(event: SampledEvent) -> Sequence[float]:
    return (event.sample_rate,)


def _by_coins(event: SampledEvent) -> Batches | None:
    return poisson_unless_all(event.sample_rate)


SampledKind = TypeVar("SampledKind", bound=SampledEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonVerification(EventVerification[SampledKind]):
    """A kind on Poisson batches of one rate, whose bounds hold for adding or removing a record."""

    neighbours: Callable[[SampledKind], Adjacency] = _added_or_removed
    chances: Callable[[SampledKind], Sequence[float]] = _alike
    drawn: Callable[[SampledKind], Batches | None] = _by_coins


def fixed_cells(law: Callable[[Kind], LossCells]) -> Callable[[Kind, bool], CellMaker]:
    """For kinds with few outcomes: the cells of ``law``, of whatever width, which are attained."""
    return lambda event, attained_only: lambda width, reach: law(event)


def delta_of_outcomes(laws: Iterable[tuple[arb, arb]], rate: float, ratio: arb) -> arb:
    """Delta at e^epsilon = ``ratio``, the worse order's, from the outcomes' masses.

    ``laws`` has each outcome's mass with the record in the batch, and without it; ``rate`` is the chance of the first.
    """
    chance, totals = arb(rate), [arb(0), arb(0)]
    for held, without in laws:
        present = (1 - chance) * without + chance * held
        totals[0] += (present - ratio * without).max(arb(0))
        totals[1] += (without - ratio * present).max(arb(0))
    return totals[0].max(totals[1])
