"""A single step, from its definition, in ball arithmetic: delta is P - e^epsilon Q over the outputs that favour P.

P draws the record with probability q, Q never; outputs are distinguished by the likelihood ratio of certain
participation. Both orders of the neighbours are summed, or integrated, over the outputs where one law is more than
e^epsilon times as likely as the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flint import arb, ctx

from privctl.domain.events import Batches, Event, LaplaceNoise, Ledger, RandomizedResponse, SampledGaussian
from verify.recompute.bound_pair import BoundPair

_BITS = 256
#: Steps of more bits are left to the grids.
_MOST_BITS = 512

#: Masses, at a likelihood ratio, of the outputs above it: with the record for certain, and without it.
_Tail = Callable[[arb], tuple[arb, arb]]


def single_step_epsilon(ledger: Ledger, delta: float) -> BoundPair | None:
    """The smallest epsilon at ``delta`` for a ledger of one step; None for any other, and where it has no formula.

    Where batches are of fixed size only the upper end is known.
    """
    live = [event for event in ledger.events if isinstance(event, _Kinds) and event.sample_rate > 0]
    if len(live) != 1 or live[0].steps != 1 or any(not isinstance(event, _Kinds) for event in ledger.events):
        return None
    (event,) = live
    if _has_no_formula(event):
        return None
    before = ctx.prec
    ctx.prec = _BITS
    try:
        enclosure = _bisect_epsilon(lambda epsilon: _worse_delta(event, epsilon), delta)
    finally:
        ctx.prec = before
    fixed = isinstance(event, SampledGaussian) and event.batches is Batches.FIXED_SIZE
    return BoundPair(0.0, enclosure.upper) if fixed else enclosure


_Kinds = SampledGaussian | LaplaceNoise | RandomizedResponse


def _has_no_formula(event: Event) -> bool:
    if isinstance(event, SampledGaussian):
        return event.batches is Batches.SHUFFLED or event.noise_multiplier < 1e-3
    if isinstance(event, LaplaceNoise):
        return event.scale < 1e-3
    return isinstance(event, RandomizedResponse) and (event.bits > _MOST_BITS or event.bits * event.epsilon > 700)


def _worse_delta(event: SampledGaussian | LaplaceNoise | RandomizedResponse, epsilon: float) -> arb:
    """The delta of the worse order."""
    rate, ratio = arb(event.sample_rate), arb(epsilon).exp()
    if isinstance(event, RandomizedResponse):
        return _delta_of_bits(event, rate, ratio)
    tail, most = _tails_of(event)
    gains = [arb(0)]
    # (1 - q) + q r > e^epsilon
    threshold = (ratio - 1 + rate) / rate
    if most is None or not bool(threshold >= most):
        with_record, without = tail(threshold)
        gains.append((1 - rate) * without + rate * with_record - ratio * without)
    # (1 - q) + q r < e^-epsilon, of the ratio r
    threshold = (1 / ratio - 1 + rate) / rate
    if bool(threshold > 0) and (most is None or bool(threshold > 1 / most)):
        with_record, without = (1 - mass for mass in tail(threshold))
        gains.append(without - ratio * ((1 - rate) * without + rate * with_record))
    return gains[0].max(gains[1]).max(gains[-1]) if len(gains) > 1 else gains[0]


def _tails_of(event: SampledGaussian | LaplaceNoise) -> tuple[_Tail, arb | None]:
    """The tails, and the largest likelihood ratio where there is one."""
    if isinstance(event, LaplaceNoise):
        reach = 1 / arb(event.scale)

        def laplace(ratio: arb) -> tuple[arb, arb]:
            root = ratio.sqrt()
            return 1 - root * (-reach / 2).exp() / 2, (-reach / 2).exp() / root / 2

        return laplace, reach.exp()
    mu = (2 if event.batches is Batches.FIXED_SIZE else 1) / arb(event.noise_multiplier)

    def gaussian(ratio: arb) -> tuple[arb, arb]:
        at = ratio.log() / mu + mu / 2
        return _upper_tail(at - mu), _upper_tail(at)

    return gaussian, None


def _upper_tail(x: arb) -> arb:
    return (x / arb(2).sqrt()).erfc() / 2


def _delta_of_bits(event: RandomizedResponse, rate: arb, ratio: arb) -> arb:
    odds = arb(event.epsilon).exp()
    kept, flipped = odds / (1 + odds), 1 / (1 + odds)
    totals = [arb(0), arb(0)]
    for k in range(event.bits + 1):
        ways = arb(math.comb(event.bits, k))
        certain, without = (ways * kept**i * flipped ** (event.bits - i) for i in (k, event.bits - k))
        with_record = (1 - rate) * without + rate * certain
        for order, gain in enumerate((with_record - ratio * without, without - ratio * with_record)):
            totals[order] += gain.max(arb(0))
    return totals[0].max(totals[1])


def _bisect_epsilon(delta_at: Callable[[float], arb], delta: float) -> BoundPair:
    """Bisection by certified comparisons: what cannot be decided stays between the ends."""
    target = arb(delta)
    if bool(delta_at(0.0) <= target):
        return BoundPair(0.0, 0.0)
    low, high = 0.0, 1.0
    while not bool(delta_at(high) <= target):
        low, high = high, 2 * high
        if high > 1e9:
            return BoundPair(low, math.inf)
    while high - low > 1e-13 * high:
        middle = low + (high - low) / 2
        middle_delta = delta_at(middle)
        if middle in (low, high) or not (bool(middle_delta <= target) or bool(middle_delta > target)):
            break
        low, high = (low, middle) if bool(middle_delta <= target) else (middle, high)
    return BoundPair(low, high)
