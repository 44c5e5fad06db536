"""Certified upper and lower bounds on the epsilon of a ledger of events at a delta."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from flint import arb, ctx

from privctl.domain.events import Event, Ledger
from verify.events import row_of
from verify.losses.bound_pair import ROUNDING, BoundPair
from verify.losses.cells import CellReach, LossCells, TooFineError
from verify.recompute import gaussian
from verify.recompute.compose import LowerDelta, UpperDelta, bound_above, bound_below
from verify.recompute.compose_grid import LARGEST_GRID, ComposeGrid, make_grid

#: Relative errors that the grid may cause in epsilon, tried in turn until the claims are decided.
PRECISIONS = (1e-3, 6e-6, 1e-6, 1e-8)
#: The finest precision used if there is no claim to decide.
_SHARP = 1e-6
_SKETCH = 2000
#: How often the grid is made, each time wider, before a ledger counts as too fine.
_TRIES = 4
#: Precision of ball arithmetic.
_BITS = 256
#: For each order of the neighbours, the cells of each kind of step with their multiplicity, and the grid for them.
OrderedCells = list[tuple[list[tuple[LossCells, int]], ComposeGrid]]


class NoBoundError(ValueError):
    """The ledger has no bound that this module can compute; the message says why."""


@dataclass(frozen=True, eq=False)  # without slots, because of the cached property
class Bounds:
    """Upper and lower bounds on delta in both orders of the neighbours, sharpest near one delta.

    ``attained`` holds the cells and grids whose losses some data set attains, from which the lower bounds follow; it is
    empty if none can be computed.
    """

    above: tuple[UpperDelta, ...]
    attained: OrderedCells

    @cached_property
    def below(self) -> tuple[LowerDelta, ...]:
        """The lower bounds, computed on demand because they take twice the work of ``above``."""
        return tuple(bound_below(kinds, grid) for kinds, grid in self.attained)

    def delta(self, epsilon: float) -> BoundPair:
        """Bounds on delta at ``epsilon`` in the worse order."""
        upper = self.upper_delta(epsilon)
        return BoundPair(min(upper, max((bound.delta(epsilon) for bound in self.below), default=0.0)), upper)

    def upper_delta(self, epsilon: float) -> float:
        """The upper bound on delta at ``epsilon``."""
        return max(bound.delta(epsilon) for bound in self.above)

    def epsilon(self, delta: float) -> BoundPair:
        """Bounds on epsilon at ``delta`` in the worse order."""
        upper = self.upper_epsilon(delta)
        # Beyond the top of the grid there is no lower bound.
        lower = max((bound.epsilon(delta) for bound in self.below), default=0.0)
        return BoundPair(min(lower, self._top, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        """The upper bound on epsilon at ``delta``."""
        return _least_epsilon(lambda epsilon: self.upper_delta(epsilon) <= delta, self._top)

    @property
    def _top(self) -> float:
        return max(float(bound.law.grid.losses[-1]) for bound in self.above)

    def witness(self, epsilon: float, delta: float) -> str | None:
        """A sentence on an event that needs more than ``delta`` at ``epsilon``; None if the grid contains none."""
        events = [bound.event(epsilon) for bound in self.below]
        if not events:
            return None
        gain, threshold, present, log_absent = max(events)
        if gain <= delta:
            return None
        order = "present" if events.index((gain, threshold, present, log_absent)) == 0 else "absent"
        return (
            f"rounding each step's privacy loss to multiples of {self.below[0].grid.width:.3g}, the event "
            f"'their sum exceeds {threshold:.6g}' has probability {present:.6g} or more with the record {order} and "
            f"{_from_log(log_absent)} or less otherwise, so delta is at least {gain:.6g} at epsilon {epsilon:.6g}"
        )


def _from_log(log: float) -> str:
    """The number with this logarithm, as a power of e if no float holds it."""
    return f"{math.exp(log):.6g}" if log > -700 else f"e^{log:.6g}"


def epsilon_of(ledger: Ledger, delta: float, claimed: Sequence[float] = (), floors: Sequence[float] = ()) -> BoundPair:
    """Bounds on the smallest epsilon at ``delta``, sharp enough to decide the claims about it.

    The claims are that it is at most each of ``claimed`` and at least each of ``floors``; without claims the default
    precision is used. The lower bound is 0 if no claim depends on it. Raises NoBoundError if no bound is known.
    """
    mu = exact_shift(ledger)
    if mu is not None:
        enclosure = gaussian.epsilon_at(delta, mu)
        return enclosure if is_attained(ledger) else BoundPair(0.0, enclosure.upper)
    if _participation_bound(ledger) <= delta:
        return BoundPair(0.0, 0.0)
    single = single_step_epsilon(ledger, delta)
    if single is not None and (single.lower > 0 or _upper_is_attained(ledger)):
        return single
    enclosure = BoundPair(0.0, math.inf) if single is None else single
    lower, upper, size = enclosure.lower, enclosure.upper, 0
    for precision in PRECISIONS:
        if precision < _SHARP and size > LARGEST_GRID // 16:
            break  # rounding would cost more than the grid gains
        finer = _bounds_near(ledger, delta, precision, upper)
        if finer is None:
            break
        size = max(bound.law.grid.count for bound in finer.above)
        upper = min(upper, finer.upper_epsilon(delta))
        is_asked = bool(claimed or floors)
        if not is_asked or floors or any(upper > value * (1 + ROUNDING) for value in claimed):
            lower = max(lower, finer.epsilon(delta).lower)
        enclosure = BoundPair(min(lower, upper), upper)
        if precision <= _SHARP and not is_asked:
            break
        decided = all(enclosure.at_most(value) is not None for value in claimed)
        if is_asked and decided and all(not enclosure.lower < value <= enclosure.upper for value in floors):
            break
    return enclosure


def _bounds_near(ledger: Ledger, delta: float, precision: float, epsilon: float) -> Bounds | None:
    """Bounds for an epsilon of at most ``epsilon``; None if there are none but that one, which is then finite."""
    try:
        return bounds(ledger, math.log(delta), precision, epsilon if 0 < epsilon < math.inf else None)
    except NoBoundError:
        if math.isinf(epsilon):
            raise
        return None


def pure_epsilon(ledger: Ledger) -> BoundPair:
    """Bounds on the smallest epsilon at delta 0, the sum of the largest losses; infinite for Gaussian noise."""
    forward, backward = 0.0, 0.0
    for event in ledger.events:
        if _rate(event) == 0:
            continue
        row = row_of(event)
        most = row.largest_loss(event)
        if math.isinf(most):
            return BoundPair(math.inf, math.inf)
        forward += event.steps * most
        backward += event.steps * (most if row.largest_back is None else row.largest_back(event))
    return BoundPair(forward * (1 - 1e-12), max(forward, backward) * (1 + 1e-12))


@lru_cache(maxsize=6)
def bounds(ledger: Ledger, log_delta: float | None, precision: float, estimate: float | None = None) -> Bounds:
    """Bounds in both orders, sharpest near ``log_delta`` (None: in the bulk), where epsilon is about ``estimate``.

    Raises NoBoundError if no bound is known.
    """
    steps = sum(event.steps for event in ledger.events)
    tail = (-40.0 if log_delta is None else log_delta - 25.0 - _tilt_allowance(ledger, log_delta)) - math.log(steps)
    try:
        upper = _orders(ledger, tail, (log_delta, precision, estimate), attained_only=False)
    except (ValueError, OverflowError, MemoryError) as error:
        raise NoBoundError(str(error)) from None
    lower = upper
    if not _upper_is_attained(ledger):
        try:
            lower = _orders(ledger, tail, (log_delta, precision, estimate), attained_only=True)
        except (ValueError, OverflowError, MemoryError):
            lower = []
        lower = lower if any(row_of(event).parts(event) for event in ledger.events) else lower[:1]
    return Bounds(above=tuple(bound_above(kinds, grid) for kinds, grid in upper), attained=lower)


def _upper_is_attained(ledger: Ledger) -> bool:
    """Whether some data set attains the cells that the upper bounds use."""
    return all(row_of(event).attained(event) for event in ledger.events)


def _tilt_allowance(ledger: Ledger, log_delta: float) -> float:
    """Approximately how much tilting raises the log of the mass at a step's least loss, log(1 - rate).

    With mu = rate sqrt(steps) / noise, the tilt is about sqrt(-2 log delta) / mu. A poor value only loosens bounds.
    """
    return min(1000.0, math.sqrt(-2 * log_delta) * max(row_of(event).tilt(event) for event in ledger.events))


def _orders(
    ledger: Ledger, tail: float, target: tuple[float | None, float, float | None], *, attained_only: bool
) -> OrderedCells:
    """The steps' cells and the grid in each order; ``target`` holds the last arguments of ``make_grid``."""
    makers = [(row_of(event).cells(event, attained_only), times) for event, times in _kinds(ledger)]
    rough = [(make(1e9, CellReach(tail)), times) for make, times in makers]
    span = max(float(cells.high[-1] - cells.low[0]) for cells, _ in rough)
    rough = [(make(span / _SKETCH, CellReach(tail)), times) for make, times in makers]
    both = [rough, [(cells.reversed(), times) for cells, times in rough]]
    orders: OrderedCells = []
    for position, sketch in enumerate(both):
        grid, tries = make_grid(sketch, *target), _TRIES
        while True:
            try:
                fine = [(make(grid.width, CellReach(tail, grid.reach)), times) for make, times in makers]
                break
            except TooFineError as error:  # where the density needs narrow cells, their number shrinks by less
                tries -= 1
                if not tries:
                    raise
                grid = grid.wider(1.2 * error.factor)
        orders.append(([(c.reversed() if position else c, times) for c, times in fine], grid))
    return orders


def _kinds(ledger: Ledger) -> list[tuple[Event, int]]:
    """Each kind of step, or of another part of an event, with its multiplicity.

    Events that never draw the record are left out.
    """
    counts: dict[Event, int] = {}
    for event in joined(ledger.events):
        if _rate(event) > 0:
            single: Event = replace(event, steps=1)  # type: ignore[call-arg]  # a field of every kind
            for part, times in row_of(event).parts(event) or [(single, event.steps)]:
                counts[part] = counts.get(part, 0) + times
    return list(counts.items())


def joined(events: Sequence[Event]) -> list[Event]:
    """``events``, with all events of a kind merged into one for the kinds that allow this."""
    joined_events = [event for event in events if row_of(event).joined is None]
    for kind in dict.fromkeys(type(event) for event in events):
        same = [event for event in events if type(event) is kind]
        make = row_of(same[0]).joined
        if make is not None:
            joined_events.append(make(same))
    return joined_events


def _rate(event: Event) -> float:
    return max(row_of(event).chances(event))


def exact_shift(ledger: Ledger) -> float | None:
    """The shift, in standard deviations, of the single Gaussian equivalent to the ledger; None if there is none."""
    total = 0.0
    for event in ledger.events:
        if _rate(event) == 0:
            continue
        squared = row_of(event).squared_shift(event)
        if squared is None:
            return None
        total += squared
    return math.sqrt(total)


def _participation_bound(ledger: Ledger) -> float:
    """A bound on the probability that a protected record takes part in any step; otherwise nothing differs."""
    return math.fsum(event.steps * math.fsum(row_of(event).chances(event)) for event in ledger.events) * (1 + 1e-12)


def is_attained(ledger: Ledger) -> bool:
    """Whether some data set attains the exact Gaussian, for an observer who knows the order of the records."""
    return exact_shift(ledger) is not None


def _least_epsilon(holds: Callable[[float], bool], top: float) -> float:
    """The least epsilon >= 0 at which ``holds``, rounded up, to about 1e-12; infinite if it fails at ``top``."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, float(top)
    if not holds(high):
        return math.inf
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def single_step_epsilon(ledger: Ledger, delta: float) -> BoundPair | None:
    """Bounds on the smallest epsilon at ``delta`` for a ledger of one step; None for others, and without a formula.

    If no data set is known to attain the formula, the lower bound is 0.
    """
    live = [event for event in joined(ledger.events) if max(row_of(event).chances(event)) > 0]
    if len(live) != 1:
        return None
    row = row_of(live[0])
    if live[0].steps != 1 and row.parts(live[0]) != [(live[0], 1)]:
        return None
    delta_at = row.once(live[0])
    if delta_at is None:
        return None
    before = ctx.prec
    ctx.prec = _BITS
    try:
        found = _least(lambda epsilon: delta_at(arb(epsilon).exp()), delta)
    finally:
        ctx.prec = before
    return found if row.attained(live[0]) else BoundPair(0.0, found.upper)


def _least(delta_at: Callable[[float], arb], delta: float) -> BoundPair:
    """The least epsilon by bisection with certified comparisons; an undecided range stays between the bounds."""
    wanted = arb(delta)
    if bool(delta_at(0.0) <= wanted):
        return BoundPair(0.0, 0.0)
    low, high = 0.0, 1.0
    while not bool(delta_at(high) <= wanted):
        low, high = high, 2 * high
        if high > 1e9:
            return BoundPair(low, math.inf)
    while high - low > 1e-13 * high:
        middle = low + (high - low) / 2
        delta_at_middle = delta_at(middle)
        if middle in (low, high) or not (bool(delta_at_middle <= wanted) or bool(delta_at_middle > wanted)):
            break
        low, high = (low, middle) if bool(delta_at_middle <= wanted) else (middle, high)
    return BoundPair(low, high)
