"""One step alone, from its definition, in ball arithmetic: delta is P - e^epsilon Q of the outputs that favour P.

P draws the record with probability q, Q never; outputs are told apart by the likelihood ratio of taking part for
certain. Both orders of the neighbours are summed up, or integrated, over the outputs where the one is more than
e^epsilon times as likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flint import arb, ctx

from privctl.domain.events import Ledger
from verify.events import row_of
from verify.recompute.enclosure import BoundPair

_BITS = 256


def epsilon_once(ledger: Ledger, delta: float) -> BoundPair | None:
    """The smallest epsilon at ``delta`` for a ledger of one step; None for any other, and where it has no formula.

    Where no data set is known to meet its delta only the upper end is.
    """
    live = [event for event in ledger.events if max(row_of(event).chances(event)) > 0]
    if len(live) != 1 or live[0].steps != 1:
        return None
    row = row_of(live[0])
    delta_at = row.once(live[0])
    if delta_at is None:
        return None
    before = ctx.prec
    ctx.prec = _BITS
    try:
        found = _least(lambda epsilon: delta_at(arb(epsilon).exp()), delta)
    finally:
        ctx.prec = before
    return found if row.met(live[0]) else BoundPair(0.0, found.upper)


def _least(delta_at: Callable[[float], arb], delta: float) -> BoundPair:
    """Bisection by certified comparisons: what is undecided stays between the ends."""
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
        found = delta_at(middle)
        if middle in (low, high) or not (bool(found <= wanted) or bool(found > wanted)):
            break
        low, high = (low, middle) if bool(found <= wanted) else (middle, high)
    return BoundPair(low, high)
