"""Delta of one sampled step in ball arithmetic, from the tails of the likelihood ratio without sampling."""

from __future__ import annotations

from collections.abc import Callable

from flint import arb

#: Maps a likelihood ratio to the masses of the outputs above it, with the record (always drawn) and without it.
Tail = Callable[[arb], tuple[arb, arb]]


def delta_of_tails(tail: Tail, most: arb | None, rate: arb, ratio: arb) -> arb:
    """Delta at e^epsilon = ``ratio`` in the worse order; ``most`` is the largest likelihood ratio, if it is bounded."""
    found = [arb(0)]
    # (1 - q) + q r > e^epsilon
    threshold = (ratio - 1 + rate) / rate
    if most is None or not bool(threshold >= most):
        with_record, without = tail(threshold)
        found.append((1 - rate) * without + rate * with_record - ratio * without)
    # (1 - q) + q r < e^-epsilon
    threshold = (1 / ratio - 1 + rate) / rate
    if bool(threshold > 0) and (most is None or bool(threshold > 1 / most)):
        with_record, without = (1 - mass for mass in tail(threshold))
        found.append(without - ratio * ((1 - rate) * without + rate * with_record))
    return found[0].max(found[1]).max(found[-1]) if len(found) > 1 else found[0]


def normal_above(x: arb) -> arb:
    """The mass of N(0, 1) above ``x``."""
    return (x / arb(2).sqrt()).erfc() / 2
