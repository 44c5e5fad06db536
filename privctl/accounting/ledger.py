"""The tight accountant that other packages use: from a ledger of events to epsilon and delta.

Every kind of event has a dominating pair (``events``); a ledger composes into one privacy loss distribution for each
order of the neighbours. If only Gaussians without sampling are left, the exact formula is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

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


#: For larger shifts, epsilon overflows.
_VACUOUS = 1e150
#: From this many steps on, Renyi DP may be tighter than the grid.
_MANY = 10_000_000
#: Renyi orders for losses beyond the floats' exponents, where the best order is close to 1.
_CLOSE_ORDERS = (*renyi.ORDERS, *(float(1 + above) for above in np.geomspace(1e-6, 10, 1600)))


def epsilon_bound(ledger: Ledger, delta: float, *, precision: float = FINE) -> float:
    """An upper bound on the epsilon of ``ledger`` at ``delta``; inf if there is no finite one.

    ``precision`` is roughly the largest relative increase due to the grid. Raises ValueError for a delta outside [0, 1)
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
    found = min(ceiling, max(order_epsilons(ledger, delta, precision=precision)))
    return found if math.isfinite(found) else _renyi_epsilon(ledger, delta, _CLOSE_ORDERS)


def pure_epsilon(ledger: Ledger) -> float:
    """The epsilon of ``ledger`` at delta 0, its largest privacy loss; inf if losses are unbounded.

    This is the Renyi divergence of infinite order. Raises ValueError for events that do not compose.
    """
    _require_one_notion(ledger)
    steps = _steps(ledger, lower=False)
    return max(largest_loss(order) for order in _orders(steps)) if steps else 0.0


def epsilon_floor(ledger: Ledger, delta: float, *, precision: float = FINE) -> float:
    """A lower bound on the epsilon of ``ledger`` at ``delta``: the other end of the enclosure.

    It is that of the dominating pair: for the worst data and the strongest observer. Raises as ``epsilon_bound``.
    """
    fraction("delta", delta)
    if any(row_of(event).extreme(event) for event in ledger.events):
        return 0.0
    ledger = Ledger(events=tuple(row_of(event).for_floor(event) for event in ledger.events))
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.epsilon_floor_at(delta, exact) if exact else 0.0
    single = _single_step(ledger, delta, lower=True)
    if single is not None:
        return single[0]
    steps = _steps(ledger, lower=True)
    least = floor_by_one_loss(steps, math.log(delta))
    for order, most in enumerate(largest_loss(steps) for steps in _orders(steps)):
        if most > least:
            (distribution,) = composed(ledger, delta, precision=precision, lower=True, order=order)
            least = max(least, distribution.epsilon(delta))
    return least


def order_epsilons(
    ledger: Ledger, delta: float, *, precision: float = FINE, order: int | None = None
) -> tuple[float, ...]:
    """Epsilon in each order of the neighbours, or only in ``order``, for a ledger that is not one Gaussian.

    If an order's largest possible loss is below the first order's epsilon, that loss is returned in place of its
    epsilon, which is then not computed.
    """
    single = _single_step(ledger, delta, lower=False)
    if single is not None:
        return (single[1],)
    epsilons: list[float] = []
    orders = list(enumerate(_orders(_steps(ledger, lower=False))))
    for position, steps in orders if order is None else orders[order : order + 1]:
        most = largest_loss(steps)
        if most > max(epsilons, default=0.0):
            (distribution_here,) = composed(ledger, delta, precision=precision, order=position)
            most = min(most, distribution_here.epsilon(delta))
        epsilons.append(most)
    return tuple(epsilons)


def _single_step(ledger: Ledger, delta: float, *, lower: bool) -> tuple[float, float] | None:
    """Lower and upper bounds on epsilon of a single step, exact to rounding; None for other ledgers.

    With ``lower``, the step's pair is the one that bounds the mechanism from below, which differs from the upper one if
    the mechanism's exact law is unknown.
    """
    steps = _steps(ledger, lower=lower)
    _require_one_notion(ledger)
    return single_step_epsilon(steps[0].pair, delta) if len(steps) == steps[0].count == 1 else None


def delta_bound(ledger: Ledger, epsilon: float, *, near: float) -> float:
    """An upper bound on the delta of ``ledger`` at ``epsilon``; tightest if it is about ``near``.

    If no loss exceeds ``most``, delta is at most 1 - e^(epsilon - most), and 0 from there on.
    """
    exact = gaussian_shift(ledger)
    if exact is not None:
        return gaussian.delta_at(epsilon, exact)
    ceiling = -math.expm1(min(0.0, epsilon - pure_epsilon(ledger)))
    return min(ceiling, max(math.exp(distribution.log_delta(epsilon)) for distribution in composed(ledger, near)))


def gaussian_shift(ledger: Ledger) -> float | None:
    """The shift mu if the ledger is equivalent to one Gaussian, 0 if no record ever takes part; else None.

    Gaussian mechanisms compose into one with mu = sqrt(sum mu_i^2) (Dong, Roth and Su 2022, corollary 3.3). Raises
    ValueError if that overflows.
    """
    mus = []
    for event in ledger.events:
        if _touches_nothing(event):
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
    """The ledger's privacy loss distribution in each order of the neighbours; only one if both are equal.

    The first order is with the record against without it; ``order`` selects one. ``delta`` sets where the grid is
    fine; None is for whole trade-off functions.
    """
    _require_one_notion(ledger)
    chosen = range(len(_orders(_steps(ledger, lower=lower)))) if order is None else [order]
    return tuple(_composed_in_order(ledger, delta, precision, lower, order) for order in chosen)


@lru_cache(maxsize=4)  # of the largest grid, each takes 40 MiB
def _composed_in_order(
    ledger: Ledger, delta: float | None, precision: float, lower: bool, order: int
) -> LossDistribution:
    """One order of ``composed``; the last few are cached, as a plan begins with the last result of calibration."""
    steps = _orders(_steps(ledger, lower=lower))[order]
    log_delta = None if delta is None else math.log(delta)
    return compose(steps, log_delta=log_delta, precision=precision, lower=lower)


def _orders(steps: list[RepeatedPair]) -> list[list[RepeatedPair]]:
    """The steps with the record against without it, and reversed if that differs."""
    if all(_is_symmetric(step.pair) for step in steps):
        return [steps]
    return [steps, [RepeatedPair(_reversed(step.pair), step.count) for step in steps]]


def _is_symmetric(pair: Pair) -> bool:
    """Whether the pair is the same in both orders."""
    if isinstance(pair, Atoms):
        return pair.mirrored
    return isinstance(pair, Gaussian | Laplace | BoundedRange | Symmetrized | OppositeMixtures)


def _reversed(pair: Pair) -> Pair:
    if isinstance(pair, Atoms) and pair.mirrored:
        return pair
    return pair.reversed() if isinstance(pair, Allocation) else Reversed(pair)


def _unsampled_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon if every record took part in every step, for Gaussian events; inf for other ledgers."""
    mus = []
    for event in ledger.events:
        mu = row_of(event).full_shift(event)
        if mu is None:
            return math.inf
        mus.append(mu)
    whole = math.hypot(*mus)
    return gaussian.epsilon_at(delta, whole) if whole < _VACUOUS else math.inf


def _long_epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon by Renyi DP if there are so many steps that the grid gets coarse; else inf."""
    if sum(event.steps for event in ledger.events) < _MANY or ledger.adjacency is not Adjacency.ADD_OR_REMOVE:
        return math.inf
    return _renyi_epsilon(ledger, delta, renyi.ORDERS)


def _renyi_epsilon(ledger: Ledger, delta: float, orders: Sequence[float]) -> float:
    """Epsilon by Renyi DP at ``orders``; inf if an event has no proved divergence."""
    try:
        return renyi.ledger_epsilon(ledger, delta, orders)[0]
    except ValueError:
        return math.inf


def _steps(ledger: Ledger, *, lower: bool) -> list[RepeatedPair]:
    """One repeated pair per event; Gaussians without sampling are merged into one."""
    pairs: list[RepeatedPair] = []
    mus: list[float] = []
    for event in _merged(ledger.events):
        if _touches_nothing(event):
            continue
        mu = row_of(event).shift(event)
        if mu is None:
            pairs.append(row_of(event).pair(event, lower))
            rest = row_of(event).rest(event, lower)
            pairs.extend([] if rest is None else [rest])
        else:
            mus.append(mu)
    if mus:
        pairs.append(RepeatedPair(Gaussian(math.hypot(*mus)), 1))
    return pairs


def _merged(events: Sequence[Event]) -> list[Event]:
    """The events, with all of a kind merged into one if they are equivalent to one."""
    merged = [event for event in events if row_of(event).joined is None]
    for kind in dict.fromkeys(type(event) for event in events):
        same = [event for event in events if type(event) is kind]
        join = row_of(same[0]).joined
        if join is not None:
            merged.append(join(same))
    return merged


def _touches_nothing(event: Event) -> bool:
    """Whether no record ever takes part."""
    return not any(event.rates)


def _require_one_notion(ledger: Ledger) -> None:
    """Raise ValueError if no single adjacency fits all events."""
    _ = ledger.adjacency
