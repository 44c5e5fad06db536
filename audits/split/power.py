"""What a drawn split can show of epsilon at best, before anything is trained; its records count as canaries do."""

from __future__ import annotations

from dataclasses import dataclass

from audits.canaries.design import BOUNDS_SHARE, canaries_to_refute, power, register

#: An audit's allowed error, and how many attacks a language model's bounds are shared by if none is named.
ALPHA, USUAL_ATTACKS = 0.05, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPower:
    """Of an audit by ``attacks`` scores, whose bounds at ``delta`` share the error equally.

    ``records`` have a coin of their own. ``ceiling`` is the largest epsilon that these can certify, if every guess by
    one of the scores is right; ``detectable`` the least true one that is likely noticed (probability 0.8, randomized
    response), None where there is none. ``needed`` is how many records could refute a claim of ``epsilon``, None where
    no number does.
    """

    attacks: int
    records: int
    epsilon: float
    delta: float
    ceiling: float
    detectable: float | None
    needed: int | None


def split_power(records: int, epsilon: float, delta: float, attacks: int) -> SplitPower:
    """The power of a split of ``records`` (at least 2) against a claim of ``epsilon`` at ``delta``."""
    found = power(register([1] * records), delta, BOUNDS_SHARE * ALPHA / attacks)
    return SplitPower(
        attacks=attacks,
        records=records,
        epsilon=epsilon,
        delta=delta,
        ceiling=found.ceiling,
        detectable=found.detectable,
        needed=canaries_to_refute(epsilon, delta, ALPHA / attacks),
    )
