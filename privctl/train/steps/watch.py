"""Observers of a training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Watch(Protocol):
    """Gets the progress of a training loop after every step and epoch."""

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """A step has ended, of ``begun`` so far; in this process it used ``examples``, with ``losses`` (n,) each."""
        ...

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """An epoch has ended after ``begun`` steps; some of its ``measures`` are exact statistics of the examples."""
        ...


@dataclass(slots=True)
class Unwatched:
    """Observes nothing."""

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``Watch``."""

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """See ``Watch``."""


@dataclass(frozen=True, slots=True)
class SeveralWatches:
    """Forwards everything to each of ``watches``."""

    watches: Sequence[Watch]

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``Watch``."""
        for watch in self.watches:
            watch.step(begun, examples, losses)

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """See ``Watch``."""
        for watch in self.watches:
            watch.epoch(begun, measures)
