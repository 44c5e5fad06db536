"""The training loop: batches, clipped gradients, noise, updates, state.

A step does what its ``TrainingSettings`` says and nothing else, so that the report states the mechanism that was run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from privctl.domain.progress import Advance, Notify
from privctl.models.activations import fused_activations
from privctl.models.kept_memory import kept_memory
from privctl.models.tasks.base import Task
from privctl.parallel import Workers
from privctl.train.clipping.engine import PerExample
from privctl.train.clipping.factors import Clipping
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.promotion import Promotion
from privctl.train.network.tensors import gather_shards
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.batch_gradients import BatchGradients
from privctl.train.steps.clip_norm import AdaptiveClipNorm, adaptive_norm
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import GradientNoise
from privctl.train.steps.holding import Holding, holding
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.optimizers import optimizer_for
from privctl.train.steps.precision import FullPrecision, Precision
from privctl.train.steps.public_gradients import NOT_FINITE, PublicGradients, PublicRecords
from privctl.train.steps.sampling import BatchSource
from privctl.train.steps.saved_state import SavedState, StateKeeper, interruption, last_saved
from privctl.train.steps.step_noise import kept_noise, restore_noise
from privctl.train.steps.watch import Unwatched, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A completed run: the number of ``updates`` and of ``steps_begun``, and one entry of ``history`` per epoch.

    ``side_releases_begun`` counts side releases. ``released`` counts all numbers that were released, with noise if the
    method adds any. ``before`` holds the held-out measures of the starting weights. ``clip_norms`` holds the values of
    an adaptive clip norm, one per update, followed by that of the next.
    """

    updates: int
    steps_begun: int
    history: tuple[Mapping[str, float], ...]
    side_releases_begun: int = 0
    released: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    clip_norms: tuple[float, ...] = ()


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run of ``recipe`` on ``network``, whose parameters that require a gradient are trained; call ``run`` once.

    ``noise`` is None if the recipe has none. ``evaluate`` measures the network on held-out data after each epoch, and
    ``first_look`` before the first step. ``precision`` determines how the network computes. With ``folder`` None no
    state is saved. ``save_every`` is in seconds. If memory runs out, the step is repeated on the same examples, fewer
    at a time, and ``notify`` is called. ``promoted`` lists the only modules that may be differentiated as a whole; None
    finds them. ``canaries`` are added to the sums of gradients and observe what is released. The gradient of ``public``
    records is added after the noise, as the recipe says. ``may_pass_twice`` is for ``MicroBatches``.
    """

    network: nn.Module
    task: Task
    recipe: TrainingSettings
    clipping: Clipping | None
    batches: BatchSource
    noise: GradientNoise | None
    workers: Workers
    device: torch.device
    precision: Precision = field(default_factory=FullPrecision)
    folder: StateKeeper | None = None
    canaries: GradientCanaries | None = None
    public: PublicRecords | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    first_look: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    promoted: Sequence[Promotion] | None = None
    advance: Advance = lambda _: None
    watch: Watch = field(default_factory=Unwatched)
    clock: Callable[[], float] = time.monotonic
    save_every: float = 300.0
    notify: Notify = lambda _: None
    may_pass_twice: bool = False
    _held: Holding = field(init=False)
    _adaptive: AdaptiveClipNorm | None = field(init=False)
    _batch: BatchGradients = field(init=False)
    _public: PublicGradients | None = field(init=False)

    def __post_init__(self) -> None:
        self._held = holding(self.network, self.workers)
        self._adaptive = adaptive_norm(self.recipe)
        self._batch = self._gradients_of(
            self.task,
            self.recipe,
            noisy=self.noise is not None,
            precision=self.precision,
            adaptive=self._adaptive,
            may_pass_twice=self.may_pass_twice,
        )
        self._public = None
        if self.public is not None and self.recipe.public is not None:
            mean = replace(self.recipe, batch_size=float(self.recipe.public.batch_size))
            of_public = self._gradients_of(self.public.task, mean, noisy=False, not_finite=NOT_FINITE)
            self._public = PublicGradients(records=self.public, batch=of_public, held=self._held, workers=self.workers)

    def _gradients_of(
        self,
        task: Task,
        recipe: TrainingSettings,
        *,
        precision: Precision | None = None,
        may_pass_twice: bool = False,
        **others: Any,
    ) -> BatchGradients:
        """Make the object that computes the gradients of batches of ``task``, a few examples at a time."""
        micro = MicroBatches(
            task=task,
            examples=recipe.micro_examples,
            tokens=recipe.micro_tokens,
            device=self.device,
            notify=self.notify,
            workers=self.workers,
            may_pass_twice=may_pass_twice,
        )
        return BatchGradients(
            network=self.network,
            task=task,
            recipe=recipe,
            workers=self.workers,
            device=self.device,
            precision=precision or FullPrecision(),
            held=self._held,
            micro=micro,
            **others,
        )

    def run(self, start: SavedState | None = None, stop: Callable[[], bool] = lambda: False) -> FinishedRun:
        """Train to the end, or until the budget of begun steps is spent.

        ``stop`` is called after each step; if it returns true in any process, the state is saved and every process
        raises RunInterruptedError. Raises InputError for a weight that is not finite after an epoch and, without noise,
        for a loss or gradient that is not finite. With noise such an example counts as zero, so that the run does not
        reveal it by stopping.
        """
        updates, steps_begun, history = 0, 0, list(start.history) if start else []
        before = finite_of(self.first_look(self.network))
        optimizer = optimizer_for(self._held.optimized, self.recipe)
        if start is not None:
            updates, steps_begun = start.updates, start.steps_begun
            self.precision.restore(start.tensors, start.side_releases_begun)
            if self.canaries is not None:
                self.canaries.restore(start.tensors)
            # The main process alone adds noise to whole sums; each process adds it to its own shards.
            noised_here = self.workers.is_main or self.workers.lockstep
            restore_noise(self.noise if noised_here else None, start.tensors, self._held.own_part)
            if self._adaptive is not None:
                self._adaptive.restore(start.tensors)
            if self._public is not None and self.workers.is_main:
                self._public.restore(start.tensors)
            if start.tensors:
                self._held.restore(optimizer, start.tensors)
        tally = EpochStats.restored(start.tensors if start is not None and self.workers.is_main else {})
        last_save = last_saved(start, self.folder, self.clock())
        jointly = self.workers.jointly
        with (
            full_precision(self.device),
            kept_memory(self.device),
            fused_activations(self.network),
            self._gradients() as engine,
        ):
            while (position := self._position(updates, steps_begun)) < self.recipe.steps:
                self.precision.begin(updates, position, lambda n: jointly(partial(self._mark, n, side=True)))
                jointly(partial(self._mark, steps_begun + 1))
                earlier = len(tally.losses)
                examples = self._step(engine, optimizer, updates, steps_begun, tally)
                self.watch.step(self._position(updates, steps_begun) + 1, examples, tally.losses[earlier:])
                updates, steps_begun = updates + 1, steps_begun + 1
                ended = self.recipe.ends_epoch(updates) or self._position(updates, steps_begun) == self.recipe.steps
                if ended:
                    history.append(self._epoch_measures(updates, tally))
                    self.watch.epoch(self._position(updates, steps_begun), history[-1])
                # The main process's clock decides for all; a signal counts even if only one process received it.
                due = self.workers.is_main and self.clock() - last_save > self.save_every
                stopping, due = self.workers.any_of(stop(), due)
                if ended or stopping or due:
                    self._save(optimizer, tally, self._state(updates, steps_begun, history))
                    last_save = self.clock()
                if stopping:
                    raise interruption(updates, self.recipe.steps, self.folder)
                self.advance(1)
        side_releases = self.precision.side_releases_begun
        numbers = sum(p.numel() for p in self._held.trained) + (self._adaptive is not None)
        released = steps_begun * numbers + side_releases * self.precision.numbers
        return FinishedRun(
            updates=updates,
            steps_begun=steps_begun,
            history=tuple(history),
            side_releases_begun=side_releases,
            released=released,
            before=before,
            clip_norms=() if self._adaptive is None else tuple(self._adaptive.norms),
        )

    def _state(self, updates: int, steps_begun: int, history: Sequence[Mapping[str, float]]) -> SavedState:
        return SavedState(
            updates=updates,
            steps_begun=steps_begun,
            tensors={},
            history=tuple(history),
            side_releases_begun=self.precision.side_releases_begun,
        )

    def _mark(self, begun: int, *, side: bool = False) -> None:
        if self.folder is not None and self.workers.is_main:
            (self.folder.mark_side_releases if side else self.folder.mark)(begun)

    def _position(self, updates: int, steps_begun: int) -> int:
        """The position in the schedule: with noise the steps begun, which the budget limits; otherwise the updates."""
        return updates if self.noise is None else steps_begun

    def _gradients(self) -> AbstractContextManager[PerExample | None]:
        if self.clipping is None:
            return nullcontext()
        # Promotion repeats a pass, and a pass that only one process repeats would break the lockstep.
        may_promote = self.promoted is None and not self.workers.lockstep
        # Nor do two passes agree where rounding is random.
        each_pass = not self.workers.lockstep and not self.precision.rounds
        return PerExample(
            self.network,
            self.clipping,
            self.promoted or (),
            may_promote=may_promote,
            passes=self.recipe.clipping_passes,
            each_pass=each_pass,
            trusted=True,
        )

    def _step(
        self,
        engine: PerExample | None,
        optimizer: torch.optim.Optimizer,
        updates: int,
        steps_begun: int,
        tally: EpochStats,
    ) -> list[int]:
        """Make one update from one batch; returns the batch's examples in this process.

        ``steps_begun`` indexes the noise, which is never reused.
        """
        self._held.clear_gradients()
        # With noise a step's secret draws are never repeated; without, a public order continues where it stopped.
        position = self._position(updates, steps_begun)
        chosen = self.workers.share(self.batches.batch(position)).tolist()
        if engine is not None and self._adaptive is not None:
            engine.clipping = replace(engine.clipping, norm=self._adaptive.clipped_to)
        accumulate = partial(self._batch.add, engine, chosen, position, tally)
        # In lockstep the processes already synchronize at each pass.
        seen = accumulate() if self.workers.lockstep else self.workers.jointly(accumulate)
        self._release(steps_begun, tally.take_count())
        if self._public is not None:
            self._public.add(position)
        for group in optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(updates)
        optimizer.step()
        if engine is not None:
            engine.bound_rows()
        return seen

    def _release(self, steps_begun: int, count: Tensor) -> None:
        """Sum the gradients over all processes and add any noise; the same for ``count``, for an adaptive clip norm."""
        noise, adaptive = self.noise, self._adaptive
        clip_norm = self.recipe.clip_norm if adaptive is None else adaptive.current
        stddev = self.recipe.sum_noise_multiplier * clip_norm / self.recipe.batch_size
        noisy = torch.zeros(1, dtype=torch.float64)

        def release(noise: GradientNoise, gradients: Sequence[Tensor]) -> None:
            # Only the main process has the sum of the counts, so it alone adds noise to it.
            beside = [adaptive.scaled_count(gradients, count)] if adaptive is not None and self.workers.is_main else []
            if self.canaries is not None:
                self.canaries.add(gradients, clip_norm, steps_begun, self.batches)
            noise.release([*gradients, *beside], stddev, steps_begun)
            if self.canaries is not None:
                self.canaries.observe(gradients, clip_norm, steps_begun)
            for tensor in beside:
                noisy.copy_(tensor)

        if adaptive is not None:
            self.workers.reduce_to_main([count])
        self._held.combine(None if noise is None else partial(release, noise))
        if adaptive is not None:
            adaptive.update(float(self.workers.broadcast(noisy)))

    def _epoch_measures(self, step: int, tally: EpochStats) -> dict[str, float]:
        """The finite measures of one epoch. Raises DivergedError for weights that are not finite."""
        self._held.require_finite(step)
        self._gather(tally)
        measured = self.evaluate(self.network)
        clip_norm = self.recipe.clip_norm if self._adaptive is None else None
        public = {} if self._public is None else self._public.summary()
        return finite_of({"step": float(step), **tally.summary(clip_norm), **public, **measured})

    def _gather(self, tally: EpochStats) -> None:
        """Move the statistics of private and public examples to the main process."""
        tally.gather(self.workers)
        if self._public is not None:
            self._public.gather()

    def _save(self, optimizer: torch.optim.Optimizer, tally: EpochStats, state: SavedState) -> None:
        """Collect the tensors of ``state`` and write it."""
        self._gather(tally)
        tensors = self._held.state(optimizer) | kept_noise(self.noise, self._held.as_saved)

        def write() -> None:
            if self.folder is not None:
                more = {} if self.canaries is None else self.canaries.tensors()
                own = tally.tensors() | dict(self.precision.tensors())
                own |= {} if self._adaptive is None else self._adaptive.tensors()
                own |= {} if self._public is None else self._public.tensors()
                self.folder.save(replace(state, tensors=tensors | own | more))

        # Shards are gathered while they are written.
        main = not self.workers.lockstep or (self.folder is not None and self.workers.is_main)
        self.workers.jointly(write if main else partial(gather_shards, tensors))


def finite_of(measures: Mapping[str, float]) -> dict[str, float]:
    """Those of ``measures`` that are finite."""
    return {name: number for name, number in measures.items() if math.isfinite(number)}
