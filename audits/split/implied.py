"""What a claim about one example implies for the unit of a drawn split's coins: one record, or a group.

Coins of groups test a claim for the same groups directly. A claim about single records bounds the effect of all records
of a group only by group privacy: (epsilon, delta) for one implies

    (k epsilon, delta (1 + e^epsilon + ... + e^((k - 1) epsilon)))

for k of them (Dwork and Roth 2014, theorem 2.2; Vadhan 2017, lemma 2.2). If the examples are groups and each record has
a coin, a coin changes an example's records: that removes one example and adds another, so k is 2. This fails if records
were chosen depending on the users of all: without a record others are chosen, however many.
"""

from __future__ import annotations

import math
from dataclasses import replace

from audits.claims import EpsilonClaim
from audits.split.drawn import DrawnSplit

#: Above this exponent, group privacy gives nothing to test.
_LARGEST = 700.0


def examples_of_a_coin(split: DrawnSplit, unit: str | None, *, fixed_graph: bool = False) -> int | None:
    """The most examples that a coin of ``split`` changes, if the values of the field ``unit`` make the examples.

    None if both are groups by different fields, whose overlap is not examined, and if records have coins and neighbours
    a ``fixed_graph``, which a coin changes. Groups of a split share no records, so the records chosen from one do not
    depend on the others.
    """
    if unit == split.group_by:
        return 1
    if unit is None:
        return split.most
    return 2 if split.group_by is None and not fixed_graph else None


def of_a_coin(claim: EpsilonClaim, examples: int) -> EpsilonClaim:
    """What ``claim`` implies for ``examples`` that are added or removed together; unchanged for one."""
    if examples == 1:
        return claim
    epsilon, delta = group_privacy(claim.epsilon, claim.delta, examples)
    source = f"of {examples} examples together by ({claim.epsilon:g}, {claim.delta:g})-DP, {claim.source}"
    return replace(claim, epsilon=epsilon, delta=delta, source=source)


def group_privacy(epsilon: float, delta: float, count: int) -> tuple[float, float]:
    """The (epsilon, delta) of ``count`` examples together, with delta at most 1. 3 of (1, 1e-6): (3, 1.1107e-5)."""
    whole = count * epsilon
    if delta == 0:
        return whole, 0.0
    if whole > _LARGEST:
        return whole, 1.0
    return whole, min(1.0, delta * (count if epsilon == 0 else math.expm1(whole) / math.expm1(epsilon)))


def why_not_judged(claim: EpsilonClaim, split: DrawnSplit) -> str:
    """Why coins of records, or of groups by another field, do not test the claim."""
    if split.group_by is None:
        return (
            "it is for neighbours whose records name the same users, and a coin of a record changes that, so that "
            "other records may have been chosen; draw a split of records of one user each, with --group-by "
            f"{claim.unit}"
        )
    return (
        f"an example of this claim is all records with one value of {claim.unit!r}, and coins were tossed for those "
        f"with one value of {split.group_by!r}; draw a split with --group-by {claim.unit}"
    )
