"""Claims of differential privacy that an audit puts to the test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from privctl.domain.guarantee import Adjacency, Guarantee, Notion, PrivacyUnit, Scope, Status
from privctl.domain.verdict import Outcome, Verdict

#: "Consistent" is said only where a true epsilon this many times the claimed one would have been noticed.
VIOLATION = 2.0


#: A canary is in the data or it is not, which says nothing of what replacing one record by another can do.
_WITH_OR_WITHOUT = (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonClaim:
    """The (``epsilon``, ``delta``)-DP for one record more or less that ``source`` claims."""

    epsilon: float
    delta: float
    source: str = "as claimed"


def subject_of(claim: EpsilonClaim) -> str:
    """What a verdict on ``claim`` is about."""
    return f"({claim.epsilon:g}, {claim.delta:g})-DP, {claim.source}"


def refuted(verdicts: Iterable[Verdict]) -> bool:
    """Whether a claim was refuted; that something leaked refutes none by itself."""
    return any(each.outcome is Outcome.REFUTED and each.subject.startswith("(") for each in verdicts)


def claims_of(guarantees: Iterable[Guarantee], source: str) -> tuple[EpsilonClaim, ...]:
    """What a report's guarantees say of this model's epsilon for one record more or less, each pair of numbers once."""
    found: dict[tuple[float, float], EpsilonClaim] = {}
    for each in guarantees:
        speaks = (
            each.epsilon is not None
            and each.notion is Notion.APPROXIMATE_DP
            and each.unit is PrivacyUnit.EXAMPLE
            and each.scope is Scope.THIS_MODEL
            and each.adjacency in _WITH_OR_WITHOUT
            and each.status is not Status.VOID
        )
        if speaks and each.epsilon is not None:
            claim = EpsilonClaim(
                epsilon=each.epsilon,
                delta=each.delta,
                source=f"{each.status} in {source} ({each.name}, {each.adjacency})",
            )
            found.setdefault((each.epsilon, each.delta), claim)
    return tuple(found.values())
