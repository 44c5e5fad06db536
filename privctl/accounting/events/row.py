"""What the accountant needs to know about a kind of event."""

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
    """The event's ``field`` that calibration sets, as ``of_noise`` of a noise level.

    A higher noise level is more private; ``of_noise`` maps it to the field's value, which may decrease.
    """

    field: str
    of_noise: Callable[[float], float] = float


def on_batches(base: Pair, event: SampledEvent) -> RepeatedPair:
    """The pair ``base`` of a step on the whole data, on Poisson batches in every step of the event."""
    return RepeatedPair(Sampled(base, event.sample_rate) if event.sample_rate < 1 else base, event.steps)


def _none(event: Event) -> float | None:
    return None


def _no_rest(event: Event, lower: bool) -> RepeatedPair | None:
    return None


def _no(event: Event) -> bool:
    return False


def _itself(event: Kind) -> Kind:
    return event


def _no_guess(event: Event, epsilon: float, delta: float) -> float | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAccounting(Generic[Kind]):
    """The accounting of one kind of event, a row of ``ROWS``.

    ``pair(event, lower)`` is the dominating pair of a step and how often it is used; with ``lower`` it must be a pair
    that bounds the loss from below. ``rest`` is a further pair for what ``pair`` does not cover, if anything.
    ``joined`` merges several events into one, if they are equivalent to one. ``divergences`` are one step's Renyi
    divergences in nats at orders above 1, as an array of the same shape; it raises ValueError if none is proved.
    ``setting`` is the field that ``privctl account`` can search for, None if there is none.

    The others are optional. ``shift`` is mu if all steps are equivalent to one Gaussian, and ``full_shift`` the same if
    every record took part in every step; None if they are not. ``extreme`` says whether losses leave the range of
    floats, ``for_floor`` gives an event with no larger loss that is safe for a lower bound, ``guess`` a starting noise
    multiplier for a search, and ``quick`` whether composition is fast enough for an interactive page.
    """

    pair: Callable[[Kind, bool], RepeatedPair]
    divergences: Callable[[Kind, Floats], Floats]
    setting: NoiseSetting | None = None
    joined: Callable[[Sequence[Kind]], Kind] | None = None
    rest: Callable[[Kind, bool], RepeatedPair | None] = _no_rest
    shift: Callable[[Kind], float | None] = _none
    full_shift: Callable[[Kind], float | None] = _none
    extreme: Callable[[Kind], bool] = _no
    for_floor: Callable[[Kind], Kind] = _itself
    guess: Callable[[Kind, float, float], float | None] = _no_guess
    quick: Callable[[Kind], bool] = _no
