"""Types of the fields that event kinds share, each annotated with the check its values must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache, partial
from typing import Annotated, Any, get_type_hints

from privctl.domain.checks import at_least, count, positive, probability
from privctl.domain.guarantee import Adjacency

#: Takes a field's name and value; raises ValueError if the value is not allowed.
Check = Callable[[str, Any], None]


def _for_each(check: Check) -> Check:
    def of_all(name: str, values: Iterable[Any]) -> None:
        for value in values:
            check(name, value)

    return of_all


def _if_given(check: Check) -> Check:
    def unless_none(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return unless_none


def _require_stated(name: str, value: Any) -> None:
    if value is Adjacency.UNSTATED:
        raise ValueError(f"{name} is {value}; it must be add-or-remove, replace-one or zero-out")


_not_negative = partial(at_least, least=0)

Positive = Annotated[float, positive]
NotNegative = Annotated[float, _not_negative]
NotNegativeIfGiven = Annotated[float | None, _if_given(_not_negative)]
OneOrMore = Annotated[float, partial(at_least, least=1)]
Several = Annotated[int, partial(at_least, least=1)]
#: A sampling rate, or another probability.
Chance = Annotated[float, probability]
Chances = Annotated[tuple[float, ...], _for_each(probability)]
NotNegatives = Annotated[tuple[float, ...], _for_each(_not_negative)]
#: The adjacency for which a mechanism's stated bound holds.
StatedNeighbours = Annotated[Adjacency, _require_stated]
#: Number of steps.
Steps = Annotated[int, count]
#: Number of examples in the data set or in a batch.
Examples = Annotated[int, count]


@cache
def checks_of(kind: type) -> tuple[tuple[str, Check], ...]:
    """Pairs of a dataclass field's name and a check from its ``Annotated`` type, in field order."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple((f.name, check) for f in fields(kind) for check in getattr(hints[f.name], "__metadata__", ()))
