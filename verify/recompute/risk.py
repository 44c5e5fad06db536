"""Upper and lower bounds on an attacker's success under a ledger, sharp enough to decide a claim.

True positive rate <= e^epsilon * false positive rate + delta(epsilon) for every epsilon (Wasserman and Zhou 2010), so
the minimum over epsilon bounds every test. The test by the sum of rounded losses gives the lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from privctl.domain.events import Batches, Ledger
from verify.events import row_of
from verify.losses.bound_pair import BoundPair
from verify.recompute import gaussian
from verify.recompute.compose import LowerDelta, UpperDelta
from verify.recompute.compose_grid import LARGEST_GRID
from verify.recompute.ledger import Bounds, bounds, exact_shift

#: Relative errors that the grid may cause, tried in turn until the claim is decided.
PRECISIONS = (6e-6, 1e-7, 1e-8)
_POINTS = 100


def advantage(ledger: Ledger, claimed: float | None = None) -> BoundPair:
    """Bounds on the largest true minus false positive rate, which is delta at epsilon 0.

    They are sharp enough to decide whether it is at most ``claimed``. Raises NoBoundError if no bound is known.
    """
    mu = exact_shift(ledger)
    if mu is not None:
        return gaussian.advantage(mu)
    enclosure = BoundPair(0.0, participation_probability(ledger))
    if _decides(enclosure.upper, claimed):
        return enclosure
    for finer in _finer_bounds(ledger):
        upper = min(enclosure.upper, finer.upper_delta(0.0))
        lower = enclosure.lower if _decides(upper, claimed) else max(enclosure.lower, finer.delta(0.0).lower)
        enclosure = BoundPair(min(lower, upper), upper)
        if claimed is None or enclosure.at_most(claimed) is not None:
            break
    return enclosure


def power(
    ledger: Ledger,
    rate: float,
    claimed: float | None = None,
    *,
    present_only: bool = False,
    precisions: Sequence[float] = PRECISIONS,
) -> BoundPair:
    """Bounds on the largest true positive rate at false positive ``rate``, in the worse order of the neighbours.

    With ``present_only``, only the order with the record present as P is used. They are sharp enough to decide whether
    it is at most ``claimed``. Raises NoBoundError if no bound is known.
    """
    mu = exact_shift(ledger)
    if mu is not None:
        return gaussian.power(rate, mu)
    if _decides(1.0, claimed):
        return BoundPair(0.0, 1.0)
    orders = slice(0, 1) if present_only else slice(None)
    enclosure, minimum = BoundPair(0.0, 1.0), _LeastPower()
    for finer in _finer_bounds(ledger, minimum, precisions):
        bests = [_power_above(bound, rate) for bound in finer.above[orders]]
        upper, minimum.epsilon, minimum.delta = max(bests)
        upper = min(enclosure.upper, upper)
        lower = enclosure.lower
        if not _decides(upper, claimed):
            lower = max([lower, *(_power_below(bound, rate) for bound in finer.below[orders])])
        enclosure = BoundPair(min(lower, upper), upper)
        if claimed is None or enclosure.at_most(claimed) is not None:
            break
    return enclosure


def participation_probability(ledger: Ledger) -> float:
    """The probability that the record is ever drawn, which bounds the advantage; 1 unless batches are Poisson."""
    absent = 0.0
    for event in ledger.events:
        rates = row_of(event).chances(event)
        if row_of(event).drawn(event) is not Batches.POISSON or max(rates) >= 1:
            return 1.0
        absent += event.steps * math.fsum(math.log1p(-rate) for rate in rates)
    return -math.expm1(absent)


@dataclass(slots=True)
class _LeastPower:
    """The epsilon and delta at which the upper bound on the power is least so far."""

    epsilon: float = 0.0
    delta: float = 0.0


def _finer_bounds(
    ledger: Ledger, minimum: _LeastPower | None = None, precisions: Sequence[float] = PRECISIONS
) -> Iterator[Bounds]:
    """Yields ever finer bounds in the bulk, then near the decisive ``minimum``, where FFT errors are smaller."""
    for precision in precisions:
        finer = bounds(ledger, None, precision)
        yield finer
        if max(bound.law.grid.count for bound in finer.above) > LARGEST_GRID // 8:
            break  # a finer grid costs seconds, and its rounding as much as it gains
    if minimum is not None and 0 < minimum.delta < 1:
        log_delta, estimate = math.log(minimum.delta), minimum.epsilon if minimum.epsilon > 0 else None
        for precision in precisions[:2]:
            yield bounds(ledger, log_delta, precision, estimate)


def _decides(upper: float, claimed: float | None) -> bool:
    """Whether the upper bound decides the claim, so that the more expensive lower bound is not needed."""
    return claimed is not None and upper <= claimed


def _power_above(bound: UpperDelta, rate: float) -> tuple[float, float, float]:
    """The minimum over epsilon of e^epsilon rate + delta(epsilon), with its epsilon and delta.

    The function is convex in e^epsilon, so a nested search finds its minimum.
    """
    losses = bound.law.grid.losses

    def height(epsilon: float) -> tuple[float, float, float]:
        delta = bound.delta(epsilon)
        return math.exp(min(epsilon, 700.0)) * rate + delta, epsilon, delta

    low, high, least = 0, len(losses) - 1, (1.0, 0.0, 1.0)
    while high > low:
        # Evaluates a hundred points, then continues between the neighbours of the least, down to adjacent grid points.
        at = np.unique(np.linspace(low, high, _POINTS + 1).astype(np.int64))
        heights = [height(float(e)) for e in losses[at]]
        best = int(np.argmin([point[0] for point in heights]))
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
