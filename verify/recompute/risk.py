"""What an attacker can make of a ledger, from both sides, as sharply as it takes to decide a claim.

True positive rate <= e^epsilon * false positive rate + delta(epsilon) for every epsilon (Wasserman and Zhou 2010), so
the least over all epsilons bounds every test; the test of the sum of rounded losses reaches what is said from below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from privctl.domain.events import Batches, Ledger
from verify.events import row_of
from verify.recompute import gaussian
from verify.recompute.compose import LARGEST_GRID, LowerDelta, UpperDelta
from verify.recompute.enclosure import BoundPair
from verify.recompute.ledger import Bounds, bounds, exact_shift

#: What the grid may add, relatively, one after the other until the claim is decided.
PRECISIONS = (6e-6, 1e-7, 1e-8)
_POINTS = 100


def advantage(ledger: Ledger, claimed: float | None = None) -> BoundPair:
    """The largest true minus false positive rate, delta at epsilon 0; fine enough to decide whether it is ``claimed``.

    Raises NoBoundError where nothing bounds the ledger.
    """
    mu = exact_shift(ledger)
    if mu is not None:
        return gaussian.advantage(mu)
    found = BoundPair(0.0, taking_part(ledger))
    for here in _finer(ledger):
        upper = min(found.upper, here.upper_delta(0.0))
        lower = found.lower if _holds(upper, claimed) else max(found.lower, here.delta(0.0).lower)
        found = BoundPair(min(lower, upper), upper)
        if claimed is None or found.at_most(claimed) is not None:
            break
    return found


def power(
    ledger: Ledger,
    rate: float,
    claimed: float | None = None,
    *,
    present_only: bool = False,
    precisions: Sequence[float] = PRECISIONS,
) -> BoundPair:
    """The largest true positive rate at false positive ``rate``, in the worse order (or with the record as P alone).

    As fine as ``advantage``, or as ``precisions`` say. Raises NoBoundError.
    """
    mu = exact_shift(ledger)
    if mu is not None:
        return gaussian.power(rate, mu)
    orders = slice(0, 1) if present_only else slice(None)
    found, turn = BoundPair(0.0, 1.0), _LeastPower()
    for here in _finer(ledger, turn, precisions):
        bests = [_power_above(bound, rate) for bound in here.above[orders]]
        upper, turn.epsilon, turn.delta = max(bests)
        upper = min(found.upper, upper)
        lower = found.lower
        if not _holds(upper, claimed):
            lower = max(lower, *(_power_below(bound, rate) for bound in here.below[orders]))
        found = BoundPair(min(lower, upper), upper)
        if claimed is None or found.at_most(claimed) is not None:
            break
    return found


def taking_part(ledger: Ledger) -> float:
    """The chance that the record ever takes part, which bounds every advantage; 1 where batches are not Poisson."""
    absent = 0.0
    for event in ledger.events:
        rates = row_of(event).chances(event)
        if row_of(event).drawn(event) is not Batches.POISSON or max(rates) >= 1:
            return 1.0
        absent += event.steps * math.fsum(math.log1p(-rate) for rate in rates)
    return -math.expm1(absent)


@dataclass(slots=True)
class _LeastPower:
    """Where the bound on a power is least, so far."""

    epsilon: float = 0.0
    delta: float = 0.0


def _finer(
    ledger: Ledger, turn: _LeastPower | None = None, precisions: Sequence[float] = PRECISIONS
) -> Iterator[Bounds]:
    """Bounds in the bulk ever finer, then near the ``turn`` that decides, where the FFT's rounding weighs less."""
    for precision in precisions:
        found = bounds(ledger, None, precision)
        yield found
        if max(bound.law.grid.count for bound in found.above) > LARGEST_GRID // 8:
            break  # a finer one costs seconds, and its rounding as much as it gains
    if turn is not None and 0 < turn.delta < 1:
        log_delta, near = math.log(turn.delta), turn.epsilon if turn.epsilon > 0 else None
        for precision in precisions[:2]:
            yield bounds(ledger, log_delta, precision, near)


def _holds(upper: float, claimed: float | None) -> bool:
    """Whether the upper end decides, so that the lower one, which costs more, is not needed."""
    return claimed is not None and upper <= claimed


def _power_above(bound: UpperDelta, rate: float) -> tuple[float, float, float]:
    """Min over epsilon of e^epsilon rate + delta(epsilon), with the epsilon and the delta.

    Convex in e^epsilon, so its turn is searched.
    """
    losses = bound.law.grid.losses

    def height(epsilon: float) -> tuple[float, float, float]:
        delta = bound.delta(epsilon)
        return math.exp(min(epsilon, 700.0)) * rate + delta, epsilon, delta

    low, high, least = 0, len(losses) - 1, (1.0, 0.0, 1.0)
    while high > low:
        # A hundred points at a time, then between the neighbours of the least, down to neighbours on the grid.
        at = np.unique(np.linspace(low, high, _POINTS + 1).astype(np.int64))
        heights = [height(float(e)) for e in losses[at]]
        best = int(np.argmin([each[0] for each in heights]))
        least = min(least, heights[best])
        low, high = int(at[max(best - 1, 0)]), int(at[min(best + 1, len(at) - 1)])
        if len(at) == high - low + 1 or high - low <= 2:
            break
    return least


def _power_below(bound: LowerDelta, rate: float) -> float:
    """The power of the sum of rounded losses as a test at level ``rate``, randomized between two thresholds."""
    present, absent = bound.present, bound.absent
    order = np.argsort(absent)
    return float(np.interp(rate, np.concatenate([[0.0], absent[order]]), np.concatenate([[0.0], present[order]])))
