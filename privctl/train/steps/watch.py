"""Who observes a training loop, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Watch(Protocol):
    """What a training loop tells after every step."""

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """``begun`` steps have begun; the last one saw ``examples`` in this process, with ``losses`` (n,) each."""
        ...

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """An epoch has ended at ``begun``, with all its ``measures``, exact ones of the examples among them."""
        ...


@dataclass(slots=True)
class Unwatched:
    """Tells nobody."""

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``Watch``."""

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """See ``Watch``."""


@dataclass(frozen=True, slots=True)
class Several:
    """Tells each of ``watches``."""

    watches: Sequence[Watch]

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``Watch``."""
        for watch in self.watches:
            watch.step(begun, examples, losses)

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """See ``Watch``."""
        for watch in self.watches:
            watch.epoch(begun, measures)
