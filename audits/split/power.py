"""What a drawn split can show about epsilon at best, before training; its coins serve like those of canaries."""

from __future__ import annotations

from dataclasses import dataclass

from audits.canaries.design import BOUNDS_SHARE, canaries_to_refute, power, register
from audits.split.drawn import DrawnSplit

#: An audit's allowed error, and the number of attacks that share a language model's bounds by default.
ALPHA, USUAL_ATTACKS = 0.05, 6
#: The number of scores that each attack gives a group of several records: of all, and of the highest.
_OF_GROUPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPower:
    """The power of an audit by ``attacks`` with ``of_each`` scores each, whose bounds share the error equally.

    ``coins`` is the number of coins of records or groups. ``ceiling`` is the largest epsilon that these can certify at
    ``delta``, if every guess by one of the scores is right; ``detectable`` the smallest true one that is likely
    detected (probability 0.8, randomized response), None if there is none. ``needed`` is the number of coins that could
    refute a claim of ``epsilon``, None if no number could.
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
    """The power by all attacks, and by one, against a claim of ``epsilon`` at ``delta``; empty below 2 coins."""
    coins, of_each = len(split.included), _OF_GROUPS if split.most > 1 else 1
    return [split_power(coins, epsilon, delta, n, of_each) for n in (USUAL_ATTACKS, 1) if coins > 1]


def split_power(coins: int, epsilon: float, delta: float, attacks: int, of_each: int = 1) -> SplitPower:
    """The power of ``coins`` coins, at least 2."""
    scores = attacks * of_each
    planned = power(register([1] * coins), delta, BOUNDS_SHARE * ALPHA / scores)
    return SplitPower(
        attacks=attacks,
        of_each=of_each,
        coins=coins,
        epsilon=epsilon,
        delta=delta,
        ceiling=planned.ceiling,
        detectable=planned.detectable,
        needed=canaries_to_refute(epsilon, delta, ALPHA / scores),
    )
