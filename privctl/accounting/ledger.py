"""From a ledger of events to numbers: the tight accountant that other packages use.

Every kind of event has a dominating pair (``events``); a ledger of any of them composes in one privacy loss
distribution, once for each order of the neighbours. Where only Gaussians without sampling are left, the exact formula
answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from privctl.accounting import gaussian, renyi
from privctl.accounting.events import row_of
from privctl.accounting.pld.allocation import Allocation
from privctl.accounting.pld.bounded_range import BoundedRange
from privctl.accounting.pld.compose import COARSE, FINE, compose
from privctl.accounting.pld.distribution import LossDistribution
from privctl.accounting.pld.extremes import floor_by_one_loss, largest_loss
from privctl.accounting.pld.gaussian_pairs import OppositeMixtures
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import (
    BEYOND_FLOATS,
    Atoms,
    Gaussian,
    Laplace,
    Pair,
    Reversed,
    Symmetrized,
)
from privctl.accounting.pld.single_step import single_step_epsilon
from privctl.domain.checks import fraction
from privctl.domain.events import Event, Ledger
from privctl.domain.guarantee import Adjacency

ACCOUNTANT = "privacy loss distribution (privctl), connect the dots"

__all__ = [
    "ACCOUNTANT", "COARSE", "FINE", "composed", "delta_bound", "epsilon_bound", "epsilon_floor", "gaussian_shift",
    "order_epsilons",
]  # fmt: skip


#: Shifts beyond this have an epsilon that floats cannot hold.
_VACUOUS = 1e150
#: From this many steps on Renyi DP may do better than the grid.
_MANY = 10_000_000


def epsilon_bound(ledger: Ledger, delta: float, *, precision: float = FINE) -> float:
    """An epsilon that ``ledger`` certainly has at ``delta``; inf where none is finite.

    ``precision`` is roughly the largest relative increase due to the grid. Raises ValueError for delta outside [0, 1)
    and for events that do not compose.
    """
    fraction("delta", delta, zero=True)
    if delta == 0:
        return pure_epsilon(ledger)
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.epsilon_at(delta, exact) if exact else 0.0
    ceiling = min(_unsampled_epsilon(ledger, delta), _long_epsilon(ledger, delta))
    if any(row_of(event).extreme(event) for event in ledger.events):
        return ceiling
    return min(ceiling, max(order_epsilons(ledger, delta, precision=precision)))


def pure_epsilon(ledger: Ledger) -> float:
    """An epsilon that ``ledger`` has at delta 0, its largest loss; inf where losses have no bound.

    It is the Renyi divergence of infinite order. Raises ValueError for events that do not compose.
    """
    _require_one_notion(ledger)
    steps = _steps(ledger, lower=False)
    return max(largest_loss(order) for order in _orders(steps)) if steps else 0.0


def epsilon_floor(ledger: Ledger, delta: float, *, precision: float = FINE) -> float:
    """An epsilon below which ``ledger`` certainly does not meet ``delta``: the other end of the enclosure.

    It is the dominating pair's: for the worst data and the strongest observer. Raises as ``epsilon_bound``.
    """
    fraction("delta", delta)
    if any(row_of(event).extreme(event) for event in ledger.events):
        return 0.0
    ledger = Ledger(events=tuple(row_of(event).for_floor(event) for event in ledger.events))
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.epsilon_floor_at(delta, exact) if exact else 0.0
    once = _once(ledger, delta, lower=True)
    if once is not None:
        return once[0]
    steps = _steps(ledger, lower=True)
    least = floor_by_one_loss(steps, math.log(delta))
    for order, most in enumerate(largest_loss(steps) for steps in _orders(steps)):
        if most > least:
            (found,) = composed(ledger, delta, precision=precision, lower=True, order=order)
            least = max(least, found.epsilon(delta))
    return least


def order_epsilons(
    ledger: Ledger, delta: float, *, precision: float = FINE, order: int | None = None
) -> tuple[float, ...]:
    """Epsilon in each order of the neighbours, or in ``order`` alone, where the ledger is not one Gaussian.

    An order whose largest possible loss is below the first order's epsilon is not computed.
    """
    once = _once(ledger, delta, lower=False)
    if once is not None:
        return (once[1],)
    found: list[float] = []
    orders = list(enumerate(_orders(_steps(ledger, lower=False))))
    for position, steps in orders if order is None else orders[order : order + 1]:
        most = largest_loss(steps)
        if most > max(found, default=0.0):
            (here,) = composed(ledger, delta, precision=precision, order=position)
            most = min(most, here.epsilon(delta))
        found.append(most)
    return tuple(found)


def _once(ledger: Ledger, delta: float, *, lower: bool) -> tuple[float, float] | None:
    """A floor and a bound of epsilon for one use of the ledger's only pair, exact to rounding; None for other ledgers.

    ``lower`` takes the pair that bounds it from below, which is another one where a mechanism's law is not known.
    """
    steps = _steps(ledger, lower=lower)
    _require_one_notion(ledger)
    return single_step_epsilon(steps[0].pair, delta) if len(steps) == steps[0].count == 1 else None


def delta_bound(ledger: Ledger, epsilon: float, *, near: float) -> float:
    """A delta that ``ledger`` certainly has at ``epsilon``; sharpest where it is about ``near``.

    With losses of ``most`` at the most it is 1 - e^(epsilon - most) at the most, 0 from there on.
    """
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.delta_at(epsilon, exact)
    ceiling = -math.expm1(min(0.0, epsilon - pure_epsilon(ledger)))
    return min(ceiling, max(math.exp(found.log_delta(epsilon)) for found in composed(ledger, near)))


def gaussian_shift(ledger: Ledger) -> float | None:
    """Mu of the one Gaussian that the ledger equals, 0 where nothing touches the data; None where it is not one.

    Gaussian mechanisms compose into one of mu = sqrt(sum mu_i^2) (Dong, Roth and Su 2022, corollary 3.3), added here
    without overflow. Raises ValueError where floats cannot hold it.
    """
    mus = []
    for event in ledger.events:
        if _unseen(event):
            continue
        mu = row_of(event).shift(event)
        if mu is None:
            return None
        mus.append(mu)
    whole = math.hypot(*mus)
    if math.isinf(whole):
        raise ValueError(BEYOND_FLOATS)
    return whole


def composed(
    ledger: Ledger, delta: float | None, *, precision: float = FINE, lower: bool = False, order: int | None = None
) -> tuple[LossDistribution, ...]:
    """The ledger's privacy loss in each order of the neighbours; only one if they coincide.

    The first order is with the record against without it; ``order`` asks for one alone. ``delta`` None is for whole
    trade-off curves.
    """
    _require_one_notion(ledger)
    chosen = range(len(_orders(_steps(ledger, lower=lower)))) if order is None else [order]
    return tuple(_in_order(ledger, delta, precision, lower, each) for each in chosen)


@lru_cache(maxsize=4)  # of the largest grid, each takes 40 MiB
def _in_order(ledger: Ledger, delta: float | None, precision: float, lower: bool, order: int) -> LossDistribution:
    """One order of ``composed``; the last few are kept, as finding the noise ends with what the plan begins with."""
    steps = _orders(_steps(ledger, lower=lower))[order]
    log_delta = None if delta is None else math.log(delta)
    return compose(steps, log_delta=log_delta, precision=precision, lower=lower)


def _orders(steps: list[RepeatedPair]) -> list[list[RepeatedPair]]:
    """The steps with the record against without it, and the reverse where that differs."""
    if all(_mirrored(step.pair) for step in steps):
        return [steps]
    return [steps, [RepeatedPair(_reversed(step.pair), step.count) for step in steps]]


def _mirrored(pair: Pair) -> bool:
    """Whether the pair is its own mirror image."""
    if isinstance(pair, Atoms):
        return pair.mirrored
    return isinstance(pair, Gaussian | Laplace | BoundedRange | Symmetrized | OppositeMixtures)


def _reversed(pair: Pair) -> Pair:
    if isinstance(pair, Atoms) and pair.mirrored:
        return pair
    return pair.reversed() if isinstance(pair, Allocation) else Reversed(pair)


def _unsampled_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon as if every record took part in every step, where all events are Gaussians; inf elsewhere."""
    mus = []
    for event in ledger.events:
        mu = row_of(event).full_shift(event)
        if mu is None:
            return math.inf
        mus.append(mu)
    whole = math.hypot(*mus)
    return gaussian.epsilon_at(delta, whole) if whole < _VACUOUS else math.inf


def _long_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon by Renyi DP where there are so many steps that the grid gets coarse; inf elsewhere."""
    if sum(event.steps for event in ledger.events) < _MANY or ledger.adjacency is not Adjacency.ADD_OR_REMOVE:
        return math.inf
    try:
        return renyi.ledger_epsilon(ledger, delta)[0]
    except ValueError:  # an event without a proved Renyi divergence
        return math.inf


def _steps(ledger: Ledger, *, lower: bool) -> list[RepeatedPair]:
    """One repeated pair per event; Gaussians without sampling are joined into one."""
    found: list[RepeatedPair] = []
    mus: list[float] = []
    for event in _joined(ledger.events):
        if _unseen(event):
            continue
        mu = row_of(event).shift(event)
        if mu is None:
            found.append(row_of(event).pair(event, lower))
            rest = row_of(event).rest(event, lower)
            found.extend([] if rest is None else [rest])
        else:
            mus.append(mu)
    if mus:
        found.append(RepeatedPair(Gaussian(math.hypot(*mus)), 1))
    return found


def _joined(events: Sequence[Event]) -> list[Event]:
    """The same, with one event for all of a kind where they amount to one."""
    found = [event for event in events if row_of(event).joined is None]
    for kind in dict.fromkeys(type(event) for event in events):
        same = [event for event in events if type(event) is kind]
        join = row_of(same[0]).joined
        if join is not None:
            found.append(join(same))
    return found


def _unseen(event: Event) -> bool:
    """No record ever takes part."""
    return not any(event.rates)


def _require_one_notion(ledger: Ledger) -> None:
    """Raise ValueError where no single notion of neighbours fits all events."""
    _ = ledger.adjacency
