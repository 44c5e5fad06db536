"""The sum of a batch's gradients, clipped if the run clips: what a step releases once noise is added."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError, in_one_line
from privctl.models.synthetic import synthetic
from privctl.models.tasks.base import Task
from privctl.models.tasks.corpus import run_length
from privctl.parallel import Workers, is_out_of_memory, joint_vote
from privctl.train.clipping.engine import ClippedBatch, PerExample
from privctl.train.clipping.passes import NotFiniteError
from privctl.train.clipping.shards import reset_after_error
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.clip_norm import AdaptiveClipNorm
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.holding import Holding
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.precision import Precision

NOT_FINITE = "the loss is not finite; the training diverged: lower --learning-rate, or check the model"
#: Tokens of the synthetic record that a process computes when only other processes have examples left.
_SHORT = 4


@dataclass(slots=True, kw_only=True)
class BatchGradients:
    """Adds the gradients of batches to the parameters that ``held`` holds, a few examples at a time.

    ``noisy`` means that noise is added afterwards: an example whose loss or gradient is not finite then counts as zero,
    which reveals nothing. Otherwise it ends the run with the error message ``not_finite``. An ``adaptive`` clip norm
    gets the gradients' norms.
    """

    network: nn.Module
    task: Task
    recipe: TrainingSettings
    noisy: bool
    workers: Workers
    device: torch.device
    precision: Precision
    held: Holding
    micro: MicroBatches
    adaptive: AdaptiveClipNorm | None = None
    not_finite: str = NOT_FINITE
    _check_each: bool = field(init=False)  # whether each micro-batch is checked to be finite by itself

    def __post_init__(self) -> None:
        self._check_each = self.workers.lockstep

    def add(self, engine: PerExample | None, chosen: Sequence[int], position: int, tally: EpochStats) -> list[int]:
        """Add the gradients of all ``chosen`` examples, which are returned in the order of use.

        Whether everything is finite is checked once, at the end, as the check waits for a GPU. If something is not, the
        step is repeated on the same examples and each micro-batch is checked. In lockstep each micro-batch is always
        checked, before other processes add to it, and what ends the run in one process ends it in all. Raises
        InputError if a loss is not finite and no noise is added.
        """
        mark = tally.mark()

        def restart() -> None:
            tally.rewind(mark)
            reset_after_error(self.network)
            self.held.clear_gradients()

        accumulate = partial(self._accumulate, engine, position, tally)
        seen = self.micro.each(chosen, position, accumulate, restart=restart)
        if not self.workers.any_in_lockstep(not tally.finite_since(mark)):
            return seen
        if engine is None or self.workers.lockstep:
            raise InputError(self.not_finite)
        restart()
        self._check_each = True
        try:
            return self.micro.each(chosen, position, accumulate, restart=restart)
        finally:
            self._check_each = self.workers.lockstep

    def _accumulate(
        self, engine: PerExample | None, position: int, tally: EpochStats, examples: Sequence[int]
    ) -> list[list[int]]:
        """Add the sum of the examples' gradients, divided by the expected batch size.

        Returns the groups of examples that must be computed again separately, in which case nothing was added. Without
        examples, takes part in what other processes compute.
        """
        if not examples:
            self._accompany(engine, position)
            return []
        run = run_length(self.task, examples)
        losses = partial(self._losses, self.task.batch(examples, self.device, position), run)
        if engine is not None:
            result = self._clipped(engine, losses, examples, run)
            if isinstance(result, ClippedBatch):
                tally.losses.append(result.losses)
                tally.norms.append(result.norms)
                if self.adaptive is not None:
                    tally.counted.append(self.adaptive.count_of(result.norms))
                return []
            if not self.noisy:  # in lockstep, where the run must end in all processes at once
                tally.losses.append(torch.tensor([math.nan], device=self.device))
                return []
            units = [list(examples[i : i + run]) for i in range(0, len(examples), run)]
            if result and len(units) == 1:
                tally.zeroed += 1
                return []
            # A non-finite row can make other rows of its batch non-finite (inf times 0 is NaN). So that no example
            # affects whether another is counted, each suspect row is run again alone before it counts as zero. If there
            # are no suspects, the rows that were not finite are another process's.
            sound = [
                example for row, unit_examples in enumerate(units) if row not in result for example in unit_examples
            ]
            return [group for group in (sound, *(units[row] for row in sorted(result))) if group]
        with self.precision.on(examples):
            with _refused("this model cannot compute a batch of these records", "give records that it takes, or use"):
                batch_losses = losses()
            with _refused("this model cannot be differentiated as the run needs it", "use"):
                torch.autograd.backward(batch_losses.sum() * self.held.loss_scale / self.recipe.batch_size)
        tally.losses.append(batch_losses.detach())
        return []

    def _accompany(self, engine: PerExample | None, position: int) -> None:
        """Make a pass with one synthetic record, whose gradient is not added."""
        inputs = synthetic(self.task, [_SHORT], classes=1).batch([0], self.device, position)
        if engine is None:
            torch.autograd.backward(self._losses(inputs).sum() * 0.0)
            return
        losses = partial(self._losses, inputs)
        with suppress(NotFiniteError):
            if self._suspects(engine, losses, 1) is None:
                engine.accumulate(losses, weight=0.0)

    def _losses(self, inputs: Mapping[str, Tensor], run: int = 1) -> Tensor:
        """The mean loss of each unit, whose examples are ``run`` consecutive rows."""
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
                losses = self.task.losses(self.network, inputs)
        except RuntimeError as error:
            if not self.recipe.bf16 or is_out_of_memory(error):
                raise
            raise InputError(
                f"this model cannot be computed in bfloat16 ({in_one_line(error)}); give --float32"
            ) from error
        return losses if run == 1 else losses.view(-1, run).mean(1)

    def _clipped(
        self, engine: PerExample, losses: Callable[[], Tensor], examples: Sequence[int], run: int
    ) -> ClippedBatch | frozenset[int]:
        """Add a batch's clipped gradients, or nothing and return the rows that are not finite.

        Without noise, and outside of lockstep, such rows raise NotFiniteError.
        """
        try:
            suspects = self._suspects(engine, losses, len(examples))
            if suspects is not None:
                return suspects
            with self.precision.on(examples):
                return engine.accumulate(
                    losses, weight=1 / self.recipe.batch_size, check_finite=self._check_each, run=run
                )
        except NotFiniteError as fault:
            if not self.noisy and not self.workers.lockstep:
                raise
            return frozenset(fault.rows)

    def _suspects(self, engine: PerExample, losses: Callable[[], Tensor], rows: int) -> frozenset[int] | None:
        """If rounding is random, compare with autograd in full precision first; returns rows that are not finite.

        None if no process has any; outside of lockstep NotFiniteError is raised instead of returning them.
        """
        if not self.precision.rounds:
            return None
        suspects: frozenset[int] = frozenset()
        try:
            engine.verify(losses, rows)
        except NotFiniteError as fault:
            if not self.workers.lockstep:
                raise
            suspects = frozenset(fault.rows)
        return suspects if self.workers.lockstep and joint_vote(bool(suspects)) else None


@contextmanager
def _refused(problem: str, do: str) -> Iterator[None]:
    """Turn an error of a network that no self-test ran into an InputError with the ``problem`` and what to ``do``."""
    try:
        yield
    except (AssertionError, IndexError, NotImplementedError, ValueError) as error:
        raise InputError(f"{problem} ({in_one_line(error)}); {do} another") from error
