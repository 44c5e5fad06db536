"""Claims of differential privacy that an audit puts to the test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Scope, Status

#: "Consistent" is said only where a true epsilon this many times the claimed one would have been noticed.
VIOLATION = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The (``epsilon``, ``delta``)-DP for single records that ``source`` claims."""

    epsilon: float
    delta: float
    source: str = "as claimed"


def claims_of(guarantees: Iterable[Guarantee], source: str) -> tuple[Claim, ...]:
    """What a report's guarantees say of this model's epsilon for one record, each pair of numbers once."""
    found: dict[tuple[float, float], Claim] = {}
    for each in guarantees:
        speaks = (
            each.epsilon is not None
            and each.notion is Notion.APPROXIMATE_DP
            and each.unit is PrivacyUnit.EXAMPLE
            and each.scope is Scope.THIS_MODEL
            and each.adjacency is not Adjacency.REPLACE_ONE  # canaries are added or left out, which it says nothing of
            and each.status is not Status.VOID
        )
        if speaks and each.epsilon is not None:
            claim = Claim(epsilon=each.epsilon, delta=each.delta, source=f"{each.status} in {source} ({each.name})")
            found.setdefault((each.epsilon, each.delta), claim)
    return tuple(found.values())
