"""The data loader of a private loop: passes of Poisson samples of the data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from privctl.train.contribution.network_state import fixed_seed, secret_seed

_CPU = torch.device("cpu")


def steps_per_pass(rate: float) -> int:
    """The number of batches in one pass over the data at sampling rate ``rate``, empty ones included."""
    return math.ceil(round(1 / rate, 6))


class PoissonLoader:
    """An iterable of Poisson samples: each example is in each batch with probability ``rate``, independently.

    A pass draws each example once in expectation. Where users are the examples, a batch has the same number of records
    of each drawn user, in consecutive rows.

    ``draw`` returns the rows of the next batch. An empty batch is not yielded; ``step_alone`` makes its step, which is
    noise only. ``leave`` is called where the loop ends within a pass.
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
        """The number of batches in one pass, empty ones included."""
        return steps_per_pass(self._rate)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass. Raises CommandError where the previous batch was not stepped."""
        try:
            for _ in range(len(self)):
                if rows := self._draw():
                    with fixed_seed(_CPU, secret_seed()):  # of random changes of rows, as in ``backward``
                        batch = self._collate([self._dataset[row] for row in rows])
                    yield batch
                else:
                    self._step_alone()
        except GeneratorExit:
            self._leave()
            raise
