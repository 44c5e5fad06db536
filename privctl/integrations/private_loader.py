"""The data loader of a private loop: passes of Poisson samples of the data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from privctl.train.contribution.network_state import fixed_seed, secret_seed

_CPU = torch.device("cpu")


def steps_per_pass(rate: float) -> int:
    """The number of batches in one pass over the data at sampling rate ``rate``."""
    return math.ceil(round(1 / rate, 6))


class PoissonLoader:
    """An iterable of Poisson samples: each example is in each batch with probability ``rate``, independently.

    A pass draws each example once in expectation. Where users are the examples, a batch has the same number of records
    of each drawn user, in consecutive rows.

    ``draw`` returns the rows of the next batch, at least one. ``leave`` is called where the loop ends within a pass,
    and told whether that was for an error while the batch was loaded. ``require_own_rows`` tests the collate function
    on the records of a batch. ``dataset`` is the data set, and ``latest`` the latest batch.
    """

    def __init__(
        self,
        rate: float,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        *,
        draw: Callable[[], list[int]],
        leave: Callable[[bool], None],
        require_own_rows: Callable[[Callable[[list[Any]], Any], list[Any]], None],
    ) -> None:
        self.dataset = dataset
        self.latest: Any = None
        self._rate, self._collate = rate, collate
        self._draw, self._leave = draw, leave
        self._require_own_rows = require_own_rows
        self._drew: object = None  # the pass that drew the latest batch

    def __len__(self) -> int:
        """The number of batches in one pass."""
        return steps_per_pass(self._rate)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass. Raises CommandError where the previous batch was not stepped."""
        current = object()
        for _ in range(len(self)):
            rows, self._drew = self._draw(), current
            try:
                with fixed_seed(_CPU, secret_seed()):  # of random changes of rows, as in ``backward``
                    records = [self.dataset[row] for row in rows]
                    self.latest = self._collate(records)
                self._require_own_rows(self._collate, records)
            except BaseException:
                self._leave(True)
                raise
            try:
                yield self.latest
            except GeneratorExit:
                if self._drew is current:
                    self._leave(False)
                raise
