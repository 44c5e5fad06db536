"""The gradient of public records, which a step adds to the private one after clipping, summing and noise.

It therefore affects no norm, clipping or count of private examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from privctl.models.tasks.base import Task
from privctl.parallel import Workers
from privctl.train.steps.batch_gradients import BatchGradients
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.holding import Holding
from privctl.train.steps.sampling import BatchSource

if TYPE_CHECKING:
    from torch import Tensor

NOT_FINITE = (
    "the loss of public records is not finite; the training diverged, or one of them is broken: lower --learning-rate "
    "or --public-weight, or check them"
)
_PREFIX, _LOSS = "public.", "public_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRecords:
    """Public records as a ``task``, the batch of each step, and the weight of their mean gradient."""

    task: Task
    batches: BatchSource
    weight: float


@dataclass(slots=True, kw_only=True)
class PublicGradients:
    """Adds the gradients of public ``records`` to those in ``held``; ``batch`` computes their mean."""

    records: PublicRecords
    batch: BatchGradients
    held: Holding
    workers: Workers
    _tally: EpochStats = field(default_factory=EpochStats)

    def add(self, position: int) -> None:
        """Add the weighted mean gradient of the public batch of the step at ``position``, the same in all processes.

        This takes the memory of one more gradient. Raises InputError if a loss is not finite: the weights depend only
        on released sums, so the error reveals nothing more about the private records.
        """
        released = [parameter.grad for parameter in self.held.optimized]
        self.held.clear_gradients()
        chosen = self.workers.share(self.records.batches.batch(position)).tolist()
        accumulate = partial(self.batch.add, None, chosen, position, self._tally)
        if self.workers.lockstep:
            accumulate()
        else:
            self.workers.jointly(accumulate)
        self.held.combine(None)
        for parameter, private in zip(self.held.optimized, released, strict=True):
            if private is not None and parameter.grad is not None:
                parameter.grad = private.add_(parameter.grad, alpha=self.records.weight)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the losses of an unfinished epoch; only in the main process."""
        own_tensors = {name.removeprefix(_PREFIX): tensors[name] for name in tensors if name.startswith(_PREFIX)}
        self._tally = EpochStats.restored(own_tensors)

    def gather(self) -> None:
        """Move the losses of all processes to the main one; every process must call it."""
        self._tally.gather(self.workers)

    def tensors(self) -> dict[str, Tensor]:
        """The state for ``restore``."""
        return {f"{_PREFIX}{name}": tensor for name, tensor in self._tally.tensors().items()}

    def summary(self) -> dict[str, float]:
        """The mean loss of the public records since the last call, each with the weights at its step."""
        figures = self._tally.summary(None)
        return {_LOSS: figures["training_loss"]} if "training_loss" in figures else {}
