"""A module that owns trained parameters, and what is known of how its gradients are separated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privctl.train.clipping.generic import generic
from privctl.train.clipping.rules import Rule
from privctl.train.clipping.use import TimeSpent

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A module that owns trained parameters; ``parameters`` maps their names in the module to those in the model.

    ``whole`` means that it was promoted and is differentiated with all its submodules; ``repeated`` that its output,
    one row for all examples, is repeated for each; ``expanded`` that there is a copy of ``parameters`` for each.
    """

    name: str
    module: nn.Module
    rule: Rule
    parameters: dict[str, str]
    whole: bool = False
    repeated: bool = False
    expanded: bool = False
    ways: dict[Any, list[Any]] = field(default_factory=dict)
    agreed: dict[str, bool] = field(default_factory=dict)
    spent: TimeSpent = field(default_factory=TimeSpent)

    @property
    def reruns(self) -> bool:
        """Whether the module alone, without what is below it, is run again."""
        return self.rule is generic and not self.whole and not self.expanded

    def reused(self) -> frozenset[str] | None:
        """The children whose outputs the ways known so far use again; None if no way is known."""
        known = [way for ways in self.ways.values() for way in ways]
        return frozenset().union(*(way.reused for way in known if way)) if known else None
