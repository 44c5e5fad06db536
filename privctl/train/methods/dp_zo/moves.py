"""The noisy numbers by which a run moved its weights, stored so that anyone can repeat the moves without the data.

They are all that the run released about its examples, so the file is covered by the same guarantee as the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from privctl.storage.atomic import PendingFile
from privctl.train.methods.dp_zo.settings import SUFFIX
from privctl.train.network.tensors import staged_tensors

_STEP, _RATE, _NUMBERS = "numbers.step", "numbers.rate", "numbers.released"


class Moves:
    """For each update, the index of its step among those begun, its learning rate, and the released numbers."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._rates: list[float] = []
        self._numbers: list[Tensor] = []

    def add(self, step: int, rate: float, released: Tensor) -> None:
        """Add an update with ``released`` (directions,) float64."""
        self._steps.append(step)
        self._rates.append(rate)
        self._numbers.append(released.detach().cpu().clone())

    def tensors(self) -> dict[str, Tensor]:
        """Steps (updates,) int64, rates (updates,) and released numbers (updates, directions), float64."""
        if not self._steps:
            return {}
        return {
            _STEP: torch.tensor(self._steps, dtype=torch.int64),
            _RATE: torch.tensor(self._rates, dtype=torch.float64),
            _NUMBERS: torch.stack(self._numbers),
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> Moves:
        """The moves in the ``tensors`` of a saved state."""
        moves = cls()
        if _STEP in tensors:
            moves._steps, moves._rates = tensors[_STEP].tolist(), tensors[_RATE].tolist()
            moves._numbers = list(tensors[_NUMBERS].clone())
        return moves

    def staged(self, path: Path) -> AbstractContextManager[PendingFile]:
        """The file, before it gets its final name ``path``."""
        return staged_tensors(path, self.tensors(), {"format": "pt"})


def numbers_path(output: Path) -> Path:
    """The file with the numbers that moved the model in the directory ``output``."""
    return output.with_name(output.name + SUFFIX)
