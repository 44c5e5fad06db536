"""What the accountant asks of a kind of event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Pair, Sampled
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.event import Event, SampledEvent

Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSetting:
    """The event's ``field`` that is found for a target epsilon: ``of_noise`` of a noise level.

    A higher level is more private; ``of_noise`` may turn it upside down.
    """

    field: str
    of_noise: Callable[[float], float] = float


def on_batches(base: Pair, event: SampledEvent) -> RepeatedPair:
    """The pair ``base`` of a step on all data, seen on Poisson batches in every step of the event."""
    return RepeatedPair(Sampled(base, event.sample_rate) if event.sample_rate < 1 else base, event.steps)


def _none(event: Event) -> float | None:
    return None


def _nothing_left(event: Event, lower: bool) -> RepeatedPair | None:
    return None


def _no(event: Event) -> bool:
    return False


def _itself(event: Kind) -> Kind:
    return event


def _no_guess(event: Event, epsilon: float, delta: float) -> float | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAccounting(Generic[Kind]):
    """One kind of event to the accountant, a row of ``ROWS``.

    ``pair`` is the dominating pair of a step, with the number of uses; told True, it must be one that bounds the loss
    from below; ``rest`` is what it does not repeat, if anything. ``joined`` makes one event of several, where they
    amount to one. ``divergences`` are one step's Renyi divergences in
    nats at orders above 1, as an array of their shape; ValueError where none is proved. ``setting`` is what ``privctl
    account`` may search, None for nothing.

    The others help where they apply. ``shift`` is mu of the single Gaussian that all steps amount to, ``full_shift``
    the same as if every record took part in every step; None where it is none. ``extreme`` says that its losses leave
    the floats' range, ``for_floor`` gives an event of no more loss that is safe to bound from below, ``guess`` a first
    noise multiplier for a search, and ``quick`` whether a page has the time to compose it.
    """

    pair: Callable[[Kind, bool], RepeatedPair]
    divergences: Callable[[Kind, Floats], Floats]
    setting: NoiseSetting | None = None
    joined: Callable[[Sequence[Kind]], Kind] | None = None
    rest: Callable[[Kind, bool], RepeatedPair | None] = _nothing_left
    shift: Callable[[Kind], float | None] = _none
    full_shift: Callable[[Kind], float | None] = _none
    extreme: Callable[[Kind], bool] = _no
    for_floor: Callable[[Kind], Kind] = _itself
    guess: Callable[[Kind, float, float], float | None] = _no_guess
    quick: Callable[[Kind], bool] = _no
