"""The sources of a step's published amounts: the private examples, or a recorded stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.domain.progress import Notify
from privctl.models.tasks.base import Task
from privctl.parallel import Workers
from privctl.train.clipping.factors import rounding_margin
from privctl.train.directional import FiredGroup
from privctl.train.directional.clipped import clipped
from privctl.train.methods.ferret.compare import EXAMPLES, ComparisonCount, SignComparison
from privctl.train.methods.ferret.publish import Publisher
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.sampling import BatchSource

Direction = Mapping[str, Tensor]
_PREFIX = "met."


class UpdateSource(Protocol):
    """A source of published amounts."""

    def amounts(self, step: int, fired: Sequence[FiredGroup], directions: Sequence[Direction]) -> Tensor:
        """The amounts (fired,) float64 of ``step``; called once for every step, in order."""
        ...


class Engine(Protocol):
    """Computes derivatives of a batch's losses; see ``directional.Derivatives``."""

    def batch(self, losses_of: partial[Tensor], fired: Sequence[FiredGroup], directions: Sequence[Direction]) -> Tensor:
        """Sums over the batch (fired,), float64."""
        ...

    def per_example(
        self, losses_of: partial[Tensor], fired: Sequence[FiredGroup], directions: Sequence[Direction]
    ) -> Tensor:
        """Each example's derivatives (n, fired), float64."""
        ...


@dataclass(slots=True, kw_only=True)
class DerivativeStats:
    """Private metrics of the examples since the end of the last epoch, for the owner only.

    ``norms`` (n,) are the norms of vectors of derivatives before clipping, if they are clipped; ``zeroed`` counts those
    of the ``examples`` whose derivatives were not finite. ``compared`` covers the whole run, not an epoch.
    """

    norms: list[Tensor] = field(default_factory=list)
    examples: int = 0
    zeroed: int = 0
    compared: ComparisonCount = field(default_factory=ComparisonCount)

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The statistics in the ``tensors`` of a saved state; empty if it has none."""
        if _PREFIX + "counts" not in tensors:
            return cls()
        examples, zeroed = tensors[_PREFIX + "counts"].tolist()
        compared = ComparisonCount.restored(tensors)
        return cls(norms=[tensors[_PREFIX + "norms"]], examples=examples, zeroed=zeroed, compared=compared)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for ``restored``."""
        counts = torch.tensor([self.examples, self.zeroed])
        return {_PREFIX + "counts": counts, _PREFIX + "norms": self._joined_amounts(), **self.compared.tensors()}

    def mark(self) -> tuple[int, int, int]:
        """A mark with which ``rewind`` forgets everything added since."""
        return len(self.norms), self.examples, self.zeroed

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """Forget what was added since ``mark``, if ``gather`` and ``summary`` were not called meanwhile."""
        norms, self.examples, self.zeroed = mark
        del self.norms[norms:]

    def gather(self, workers: Workers) -> None:
        """Move all processes' statistics to the main one; every process must call this."""
        if workers.size == 1:
            return
        norms, counts = (
            workers.gather(self._joined_amounts()),
            workers.gather(torch.tensor([self.examples, self.zeroed])),
        )
        self.norms, self.examples, self.zeroed = [], 0, 0
        if workers.is_main:
            self.norms, (self.examples, self.zeroed) = [norms], counts.view(-1, 2).sum(0).tolist()

    def summary(self, clip_norm: float | None) -> dict[str, float]:
        """The fractions of clipped vectors and of zeroed examples, and the median norm; resets the statistics."""
        norms, measures = self._joined_amounts(), {}
        if len(norms) and clip_norm is not None:
            measures = {
                "clipped_derivatives": float((norms > clip_norm).double().mean()),
                "median_derivatives": float(norms.median()),
            }
        if self.zeroed:
            measures["zeroed_fraction"] = self.zeroed / self.examples
        self.norms, self.examples, self.zeroed = [], 0, 0
        return measures

    def _joined_amounts(self) -> Tensor:
        return torch.cat([torch.empty(0, dtype=torch.float64), *self.norms])


@dataclass(slots=True, kw_only=True)
class PrivateExamples:
    """Computes amounts from the private examples.

    Processes exchange only sums of derivatives, and the main one publishes. ``dimensions`` are the numbers of weights
    in each group, divided by the number of its directions. Derivatives are taken along sqrt(dimension) u, whose entries
    are near 1 for one direction: signs are the same as along u, and the root mean square over directions is the norm of
    the group's gradient, so a clip norm has the same meaning as for gradients, whatever the size of a group and the
    number of its directions. The main process has ``compare`` check some of the first signs.
    """

    network: nn.Module
    task: Task
    dimensions: Sequence[float]
    recipe: TrainingSettings
    batches: BatchSource
    engine: Engine
    publisher: Publisher
    workers: Workers
    device: torch.device
    compare: SignComparison | None = None
    statistics: DerivativeStats = field(default_factory=DerivativeStats)
    notify: Notify = lambda _: None
    _micro: MicroBatches = field(init=False)

    def __post_init__(self) -> None:
        self._micro = MicroBatches(
            task=self.task,
            examples=self.recipe.micro_examples,
            tokens=self.recipe.micro_tokens,
            device=self.device,
            notify=self.notify,
        )

    def amounts(self, step: int, fired: Sequence[FiredGroup], directions: Sequence[Direction]) -> Tensor:
        """See ``UpdateSource``. The derivatives of an empty batch are zero."""
        sums = torch.zeros(len(fired), dtype=torch.float64)
        chosen = self.workers.share(self.batches.batch(step)).tolist()
        mark, last = self.statistics.mark(), list[int]()

        def add(micro: Sequence[int]) -> None:
            last[:] = micro
            sums.add_(self._contribution(micro, step, fired, directions))

        def restart() -> None:
            sums.zero_()
            self.statistics.rewind(mark)

        self._micro.each(chosen, step, add, restart=restart)
        # Only now is it known whether differences work for the network at all.
        if (
            last
            and self.compare is not None
            and self.workers.is_main
            and self.compare.wanted(self.statistics.compared, fired)
        ):
            losses = partial(self._losses, self.task.batch(last[:EXAMPLES], self.device, step))
            self.statistics.compared = self.compare.more(self.statistics.compared, losses, fired, directions)
        self.workers.all_reduce([sums])
        published = self.publisher.publish(step, sums) if self.workers.is_main else sums
        return self.workers.broadcast(published)

    def _contribution(
        self, examples: Sequence[int], step: int, fired: Sequence[FiredGroup], directions: Sequence[Direction]
    ) -> Tensor:
        """The examples' part of the sums. Non-finite derivatives count as zero, so that they do not stop the run."""
        self.statistics.examples += len(examples)
        lengths = torch.tensor([math.sqrt(self.dimensions[group.index]) for group in fired], dtype=torch.float64)
        losses = partial(self._losses, self.task.batch(examples, self.device, step))
        norm = self.publisher.clip_norm
        if norm is None:
            sums = self.engine.batch(losses, fired, directions).detach().cpu() * lengths
            if torch.isfinite(sums).all():
                return sums
        else:
            vectors = self.engine.per_example(losses, fired, directions).detach().cpu() * lengths
            total, norms = clipped(vectors, norm * (1 - rounding_margin(reduced=self.recipe.bf16)))
            sound = ~norms.isnan()
            if sound.all() or len(examples) == 1:
                self.statistics.norms.append(norms[sound])
                self.statistics.zeroed += int((~sound).sum())
                return total
        if len(examples) == 1:
            self.statistics.zeroed += 1
            return torch.zeros(len(fired), dtype=torch.float64)
        # One example can make its whole batch non-finite, but must not affect the others, so each runs alone.
        self.statistics.examples -= len(examples)
        alone = [self._contribution([example], step, fired, directions) for example in examples]
        return torch.stack(alone).sum(0)

    def _losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            return self.task.losses(self.network, inputs)


@dataclass(slots=True, kw_only=True)
class RecordedStream:
    """Reads the amounts of an earlier run, in order."""

    published: Tensor
    place: int = 0

    def amounts(self, step: int, fired: Sequence[FiredGroup], directions: Sequence[Direction]) -> Tensor:
        """See ``UpdateSource``. Raises InputError if the stream is too short."""
        end = self.place + len(fired)
        if end > len(self.published):
            raise InputError("the stream ends before its last step; get it again from its maker")
        amounts, self.place = self.published[self.place : end], end
        return amounts
