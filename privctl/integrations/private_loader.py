"""The loader of a private loop: Poisson samples of the data set, in passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any


def steps_a_pass(rate: float) -> int:
    """Batches that a loader yields in one pass, empty ones counted, where each example is in one with ``rate``."""
    return math.ceil(round(1 / rate, 6))


class PoissonLoader:
    """Batches of one pass in expectation: each example is in each of them with the sampling rate, independently.

    Where there are users they are drawn so, and a batch has the same number of records of each, one user's together.

    An empty batch is not yielded; ``step_alone`` makes its step, of noise alone. ``draw`` gives the rows of the next
    step, and ``leave`` is told of a loop that ends within a pass.
    """

    def __init__(
        self,
        rate: float,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        *,
        draw: Callable[[], list[int]],
        step_alone: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self._rate, self._dataset, self._collate = rate, dataset, collate
        self._draw, self._step_alone, self._leave = draw, step_alone, leave

    def __len__(self) -> int:
        """Steps in one pass, empty ones counted."""
        return steps_a_pass(self._rate)

    def __iter__(self) -> Iterator[Any]:
        """Raises CommandError for a batch that was not stepped before the next."""
        try:
            for _ in range(len(self)):
                if rows := self._draw():
                    yield self._collate([self._dataset[row] for row in rows])
                else:
                    self._step_alone()
        except GeneratorExit:
            self._leave()
            raise
