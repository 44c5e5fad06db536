"""What a drawn split can show of epsilon at best, before anything is trained; its coins count as canaries do."""

from __future__ import annotations

from dataclasses import dataclass

from audits.canaries.design import BOUNDS_SHARE, canaries_to_refute, power, register
from audits.split.drawn import DrawnSplit

#: An audit's allowed error, and how many attacks a language model's bounds are shared by if none is named.
ALPHA, USUAL_ATTACKS = 0.05, 6
#: Each attack gives a group of several records two scores: of all, and of the highest.
_OF_GROUPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPower:
    """Of an audit by so many ``attacks``, with ``of_each`` so many scores, whose bounds share the error equally.

    ``coins`` are those of records or groups. ``ceiling`` is the largest epsilon that these can certify at ``delta``, if
    every guess by one of the scores is right; ``detectable`` the least true one that is likely noticed (probability
    0.8, randomized response), None where there is none. ``needed`` is how many coins could refute a claim of
    ``epsilon``, None where no number does.
    """

    attacks: int
    of_each: int
    coins: int
    epsilon: float
    delta: float
    ceiling: float
    detectable: float | None
    needed: int | None


def powers_of(split: DrawnSplit, epsilon: float, delta: float) -> list[SplitPower]:
    """By all attacks, and by one, against a claim of ``epsilon`` at ``delta``; none with fewer than 2 coins."""
    coins, of_each = len(split.included), _OF_GROUPS if split.most > 1 else 1
    return [split_power(coins, epsilon, delta, n, of_each) for n in (USUAL_ATTACKS, 1) if coins > 1]


def split_power(coins: int, epsilon: float, delta: float, attacks: int, of_each: int = 1) -> SplitPower:
    """The power of so many ``coins``, at least 2."""
    scores = attacks * of_each
    found = power(register([1] * coins), delta, BOUNDS_SHARE * ALPHA / scores)
    return SplitPower(
        attacks=attacks,
        of_each=of_each,
        coins=coins,
        epsilon=epsilon,
        delta=delta,
        ceiling=found.ceiling,
        detectable=found.detectable,
        needed=canaries_to_refute(epsilon, delta, ALPHA / scores),
    )
