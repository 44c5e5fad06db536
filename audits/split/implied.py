"""What a claim about one example says of what shares a coin of a drawn split: one record, or a group.

Coins of groups test a claim whose examples are the same groups as it stands. A claim about single records bounds what
all records of a group can do only by group privacy: (epsilon, delta) for one gives

    (k epsilon, delta (1 + e^epsilon + ... + e^((k - 1) epsilon)))

for k of them (Dwork and Roth 2014, theorem 2.2; Vadhan 2017, lemma 2.2). Where the examples are groups and each record
has a coin, a coin changes what an example holds: that is one example less and another one more, so k is 2. Not so
where records were chosen by the users of all: without a record others are chosen, however many.
"""

from __future__ import annotations

import math
from dataclasses import replace

from audits.claims import EpsilonClaim
from audits.split.drawn import DrawnSplit

#: Above this exponent no group privacy is left to test.
_LARGEST = 700.0


def examples_of_a_coin(split: DrawnSplit, unit: str | None, *, fixed_graph: bool = False) -> int | None:
    """How many examples a coin of ``split`` changes at most, where ``unit`` is the field whose values make examples.

    None where both are groups, by different fields: how those overlap is not looked for; and where records have coins
    and neighbours a ``fixed_graph``, which a coin changes. Groups of a split share no record, so what is chosen of one
    does not depend on the others.
    """
    if unit == split.group_by:
        return 1
    if unit is None:
        return split.most
    return 2 if split.group_by is None and not fixed_graph else None


def of_a_coin(claim: EpsilonClaim, examples: int) -> EpsilonClaim:
    """What ``claim`` says of so many ``examples`` that are added or removed together; itself for one."""
    if examples == 1:
        return claim
    epsilon, delta = together(claim.epsilon, claim.delta, examples)
    source = f"of {examples} examples together by ({claim.epsilon:g}, {claim.delta:g})-DP, {claim.source}"
    return replace(claim, epsilon=epsilon, delta=delta, source=source)


def together(epsilon: float, delta: float, count: int) -> tuple[float, float]:
    """The (epsilon, delta) of ``count`` examples together; delta is 1 at most. 3 of (1, 1e-6): (3, 1.1107e-5)."""
    whole = count * epsilon
    if delta == 0:
        return whole, 0.0
    if whole > _LARGEST:
        return whole, 1.0
    return whole, min(1.0, delta * (count if epsilon == 0 else math.expm1(whole) / math.expm1(epsilon)))


def why_not_judged(claim: EpsilonClaim, split: DrawnSplit) -> str:
    """Why coins of records or by another field than that of the claim's examples do not test it."""
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
