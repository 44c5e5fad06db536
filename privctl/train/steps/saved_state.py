"""The state from which a training can be resumed, and the protocol of what stores it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from privctl.domain.errors import RunInterruptedError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The state to continue from: ``tensors`` after ``updates`` updates, and the total number of ``steps_begun``.

    ``side_releases_begun`` counts side releases.
    """

    updates: int
    steps_begun: int
    tensors: Mapping[str, Tensor]
    history: tuple[Mapping[str, float], ...] = ()
    side_releases_begun: int = 0


class StateKeeper(Protocol):
    """Stores the state of one run in the folder ``path``."""

    @property
    def path(self) -> Path:
        """The folder of the state."""
        ...

    def mark(self, begun: int) -> None:
        """Record that ``begun`` steps have begun, before the last of them is computed."""
        ...

    def mark_side_releases(self, begun: int) -> None:
        """The same for side releases."""
        ...

    def save(self, saved: SavedState) -> None:
        """Write the state atomically."""
        ...


def last_saved(start: SavedState | None, folder: StateKeeper | None, now: float) -> float:
    """When the state was last saved (seconds): ``now``, or -inf if it never was, so that the next step is saved.

    A disk without room for the state then ends the run before more is spent, and one kill after another does not lose
    everything.
    """
    return now if folder is None or (start is not None and start.tensors) else -math.inf


def interruption(step: int, steps: int, folder: StateKeeper | None) -> RunInterruptedError:
    """The error of a run that was stopped after ``step`` of its ``steps``; without ``folder``, nothing was saved."""
    done = f"interrupted after step {step} of {steps}"
    if folder is None:
        return RunInterruptedError(done)
    return RunInterruptedError(
        f"{done}; the state was saved in {folder.path}: continue with --resume and the same settings"
    )
