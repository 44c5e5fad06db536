"""Who observes a training loop, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Watch(Protocol):
    """What a training loop tells after every step."""

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """``begun`` steps have begun; the last one saw ``examples`` in this process, with ``losses`` (n,) each."""
        ...


@dataclass(slots=True)
class Unwatched:
    """Tells nobody."""

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``Watch``."""
