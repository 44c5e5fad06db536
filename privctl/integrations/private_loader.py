"""The loader of a private loop: Poisson samples of the data set, in passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privctl.integrations.private_training import PrivateTraining


def steps_a_pass(rate: float) -> int:
    """Batches that a loader yields in one pass, empty ones counted, where each example is in one with ``rate``."""
    return math.ceil(round(1 / rate, 6))


class PoissonLoader:
    """Batches of one pass in expectation: each example is in each of them with the sampling rate, independently.

    Where there are users they are drawn so, and a batch has the same number of records of each, one user's together.

    An empty batch is not yielded; its step, of noise alone, is made here.
    """

    def __init__(self, training: PrivateTraining) -> None:
        self._training = training

    def __len__(self) -> int:
        """Steps in one pass, empty ones counted."""
        return steps_a_pass(self._training._batches.rate)

    def __iter__(self) -> Iterator[Any]:
        """Raises CommandError for a batch that was not stepped before the next."""
        training = self._training
        try:
            for _ in range(len(self)):
                rows = training._draw()
                if rows:
                    yield training._collate([training._dataset[row] for row in rows])
                else:
                    training._step_without_rows()
        except GeneratorExit:
            training._leave()
            raise
