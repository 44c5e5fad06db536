"""The training loop of DP-ZO.

A step draws a batch, compares losses along public directions, releases a few noisy numbers, and moves the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from privctl.domain.progress import Advance
from privctl.parallel import Workers
from privctl.train.methods.dp_zo.differences import LossDifferences
from privctl.train.methods.dp_zo.moves import Moves
from privctl.train.network.tensors import load_tensors, named_tensors, require_finite
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.gradient_noise import GradientNoise
from privctl.train.steps.loop import FinishedRun, finite_of
from privctl.train.steps.sampling import BatchSource
from privctl.train.steps.saved_state import SavedState, StateKeeper, interruption, last_saved
from privctl.train.steps.watch import Unwatched, Watch

_MODEL = "model."
#: New names for the metrics of clipped gradients, as these are vectors of differences.
_RENAMED = {"clipped_fraction": "clipped_derivatives", "median_norm": "median_derivatives"}


@dataclass(slots=True, kw_only=True)
class ZerothOrderTrainer:
    """A single run; call ``run`` once. Fields are as in ``loop.Trainer``.

    The directions of a step depend on its index among the steps begun, so none is used with two draws of noise.
    ``moves`` holds the updates so far.
    """

    network: nn.Module
    recipe: TrainingSettings
    differences: LossDifferences
    batches: BatchSource
    noise: GradientNoise
    workers: Workers
    folder: StateKeeper | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    first_look: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    advance: Advance = lambda _: None
    watch: Watch = field(default_factory=Unwatched)
    clock: Callable[[], float] = time.monotonic
    save_every: float = 300.0
    moves: Moves = field(default_factory=Moves)

    def run(self, start: SavedState | None = None, stop: Callable[[], bool] = lambda: False) -> FinishedRun:
        """Train until all steps are begun; ``stop`` is called after each, as in ``loop.Trainer.run``.

        Raises DivergedError for weights that are not finite, RunInterruptedError if ``stop`` returns True in any
        process.
        """
        before = finite_of(self.first_look(self.network))
        updates, begun, history, tally = 0, 0, list[Mapping[str, float]](), EpochStats()
        if start is not None:
            updates, begun, history = start.updates, start.steps_begun, list(start.history)
            if start.tensors:
                saved = {n.removeprefix(_MODEL): t for n, t in start.tensors.items() if n.startswith(_MODEL)}
                load_tensors(self.network, saved)
            tally = EpochStats.restored(start.tensors if self.workers.is_main else {})
            self.moves = Moves.restored(start.tensors)
        last_save = last_saved(start, self.folder, self.clock())
        while begun < self.recipe.steps:
            if self.folder is not None and self.workers.is_main:
                self.folder.mark(begun + 1)
            earlier = len(tally.losses)
            examples = self._step(begun, updates, tally)
            updates, begun = updates + 1, begun + 1
            self.watch.step(begun, examples, tally.losses[earlier:])
            ended = self.recipe.ends_epoch(updates) or begun == self.recipe.steps
            if ended:
                history.append(self._epoch_measures(updates, tally))
                self.watch.epoch(begun, history[-1])
            due = self.workers.is_main and self.clock() - last_save > self.save_every
            stopping, due = self.workers.any_of(stop(), due)
            if ended or stopping or due:
                self._save(tally, SavedState(updates=updates, steps_begun=begun, tensors={}, history=tuple(history)))
                last_save = self.clock()
            if stopping:
                raise interruption(updates, self.recipe.steps, self.folder)
            self.advance(1)
        released = begun * self.differences.directions
        return FinishedRun(updates=updates, steps_begun=begun, history=tuple(history), released=released, before=before)

    def _step(self, begun: int, updates: int, tally: EpochStats) -> list[int]:
        """Make one step from the sums over all processes' examples, and return this process's examples."""
        chosen: list[int] = self.workers.share(self.batches.batch(begun)).tolist()
        self.differences.weights.onto_grid()
        sums = self.differences.sums(chosen, begun, tally)
        self.workers.all_reduce([sums])
        recipe = self.recipe
        if self.workers.is_main:
            self.noise.release([sums], recipe.noise_multiplier * recipe.clip_norm, begun)
        released: Tensor = self.workers.broadcast(sums)
        rate = recipe.learning_rate_at(updates)
        self.moves.add(begun, rate, released)
        with torch.no_grad():
            # The mean over directions, as each of them estimates the same gradient.
            amounts = released * (rate / recipe.batch_size / self.differences.directions)
            self.differences.weights.descend(begun, amounts, rate * recipe.weight_decay)
        return chosen

    def _epoch_measures(self, step: int, tally: EpochStats) -> dict[str, float]:
        require_finite(self.network, step)
        tally.gather(self.workers)
        measured = self.evaluate(self.network)
        measures = {_RENAMED.get(name, name): value for name, value in tally.summary(self.recipe.clip_norm).items()}
        return finite_of({"step": float(step), **measures, **measured})

    def _save(self, tally: EpochStats, state: SavedState) -> None:
        tally.gather(self.workers)

        def write() -> None:
            if self.folder is not None:
                tensors = {f"{_MODEL}{name}": tensor for name, tensor in named_tensors(self.network).items()}
                self.folder.save(replace(state, tensors=tensors | tally.tensors() | self.moves.tensors()))

        self.workers.in_main(write)
