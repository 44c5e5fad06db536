"""The training loop: batches, clipped gradients, noise, updates, state.

One step does what its ``TrainingSettings`` says and nothing else, so that the report's mechanism is what was done.
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

from privctl.domain.errors import InputFault, Interrupted
from privctl.domain.mechanism import Optimizer
from privctl.domain.progress import Advance
from privctl.models.tasks.base import Task
from privctl.parallel import Workers
from privctl.train.clipping.engine import ClippedBatch, NotFinite, PerExample
from privctl.train.clipping.norms_and_weights import Clipping
from privctl.train.epoch_stats import EpochStats
from privctl.train.gradient_noise import GradientNoise
from privctl.train.precision import FullPrecision, Precision
from privctl.train.run_folder import RunFolder, SavedState
from privctl.train.sampling import BatchSource
from privctl.train.settings import TrainingSettings
from privctl.train.tensors import load_tensors, named_tensors, require_finite


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that came to its end: ``step`` updates, ``spent`` steps begun, one entry of ``history`` an epoch.

    ``measured`` releases were begun beside the steps'. ``released`` numbers were shown in all, with noise where there
    is some.
    """

    step: int
    spent: int
    history: tuple[Mapping[str, float], ...]
    measured: int = 0
    released: int = 0


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run of ``recipe`` on ``network``, whose parameters that require a gradient are trained; call ``run`` once.

    ``noise`` is None where the recipe has none. ``evaluate`` measures the network on held-out data after each epoch.
    ``precision`` says how the network computes. ``folder`` None keeps no state. ``save_every`` is in seconds.
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
    folder: RunFolder | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    advance: Advance = lambda _: None
    clock: Callable[[], float] = time.monotonic
    save_every: float = 300.0

    def run(self, start: SavedState | None = None, stop: Callable[[], bool] = lambda: False) -> FinishedRun:
        """Train to the end, or until the budget of begun steps is spent.

        ``stop`` is asked after each step; where any process says yes, the state is saved and Interrupted raised in all.
        Raises InputFault where a weight is not finite after an epoch, and without noise where a loss or a gradient is
        not: with noise such an example counts as zero, so that its presence does not show in the run's end.
        """
        step, spent, history = 0, 0, list(start.history) if start else []
        optimizer = _optimizer(self._trainable(), self.recipe)
        if start is not None:
            step, spent = start.step, start.spent
            self.precision.restore(start.tensors, start.measured)
            if start.tensors:
                _restore(self.network, optimizer, start.tensors)
        tally = EpochStats.restored(start.tensors if start is not None and self.workers.is_main else {})
        last_save = self.clock()
        with self._gradients() as engine:
            while (place := self._counted(step, spent)) < self.recipe.steps:
                self.precision.begin(step, place, self._mark_measured)
                if self.folder is not None and self.workers.is_main:
                    self.folder.mark(spent + 1)
                self._step(engine, optimizer, step, spent, tally)
                step, spent = step + 1, spent + 1
                ended = step % self.recipe.steps_per_epoch == 0 or self._counted(step, spent) == self.recipe.steps
                if ended:
                    history.append(self._entry(step, tally))
                # One process's clock decides for all, and so does a signal that reached only one.
                due = self.workers.is_main and self.clock() - last_save > self.save_every
                stopping, due = self.workers.any_of(stop(), due)
                if ended or stopping or due:
                    self._save(optimizer, tally, self._reached(step, spent, history))
                    last_save = self.clock()
                if stopping:
                    raise Interrupted(self._parting(step))
                self.advance(1)
        measured = self.precision.measured
        released = spent * sum(p.numel() for p in self._trainable()) + measured * self.precision.numbers
        return FinishedRun(step=step, spent=spent, history=tuple(history), measured=measured, released=released)

    def _reached(self, step: int, spent: int, history: Sequence[Mapping[str, float]]) -> SavedState:
        return SavedState(step=step, spent=spent, tensors={}, history=tuple(history), measured=self.precision.measured)

    def _mark_measured(self, begun: int) -> None:
        if self.folder is not None and self.workers.is_main:
            self.folder.mark_measured(begun)

    def _counted(self, step: int, spent: int) -> int:
        """What is limited: the updates, or where there is noise the steps that were begun."""
        return step if self.noise is None else spent

    def _trainable(self) -> list[nn.Parameter]:
        found = [p for p in self.network.parameters() if p.requires_grad]
        if not found:
            raise InputFault("the model has no parameter that requires a gradient; there is nothing to train")
        return found

    def _gradients(self) -> AbstractContextManager[PerExample | None]:
        return nullcontext() if self.clipping is None else PerExample(self.network, self.clipping)

    def _step(
        self, engine: PerExample | None, optimizer: torch.optim.Optimizer, step: int, spent: int, tally: EpochStats
    ) -> None:
        """One update from one batch; ``spent`` counts the noise, which is never used twice."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad = None  # is written, not added to: one pass over it less than from zeros
        # Secret draws are never repeated; an order that is public must go on where it stopped.
        place = self._counted(step, spent)
        chosen = self.workers.share(self.batches.batch(place)).tolist()
        for micro in self.task.micro_batches(chosen, place, self.recipe.micro_examples, self.recipe.micro_tokens):
            self._accumulate(engine, micro, place, tally)
        gradients = [_gradient(p) for p in parameters]
        if self.noise is None:
            self.workers.all_reduce(gradients)
        else:
            self.workers.reduce_to_main(gradients)
            if self.workers.is_main:
                stddev = self.recipe.noise_multiplier * self.recipe.clip_norm / self.recipe.batch_size
                self.noise.release(gradients, stddev, spent)
            for gradient in gradients:
                self.workers.broadcast(gradient)
        for group in optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(step)
        optimizer.step()

    def _accumulate(self, engine: PerExample | None, examples: Sequence[int], place: int, tally: EpochStats) -> None:
        """Add the examples' part of the step's gradient: their sum by the expected batch size."""
        losses = partial(self._losses, self.task.batch(examples, self.device, place))
        if engine is not None:
            found = self._clipped(engine, losses, examples)
            if isinstance(found, ClippedBatch):
                tally.losses.append(found.losses)
                tally.norms.append(found.norms)
            elif len(examples) == 1:
                tally.zeroed += 1
            else:
                # Not finite times zero is not finite: what a batch shares, such a row may spoil for the others too. So
                # that no example decides about another, each suspect is heard alone; only then is it zero.
                sound = [example for row, example in enumerate(examples) if row not in found]
                for group in (sound, *([examples[row]] for row in found)):
                    if group:
                        self._accumulate(engine, group, place, tally)
            return
        with self.precision.on(examples):
            each = losses()
            if not torch.isfinite(each).all():
                raise InputFault(
                    "the loss is not finite; the training diverged: lower --learning-rate, or check the model"
                )
            torch.autograd.backward(each.sum() / self.recipe.batch_size)
        tally.losses.append(each.detach())

    def _losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            return self.task.losses(self.network, inputs)

    def _clipped(
        self, engine: PerExample, losses: Callable[[], Tensor], examples: Sequence[int]
    ) -> ClippedBatch | frozenset[int]:
        """Add a batch's clipped gradients; or, with noise, nothing, and give the rows that are in the way."""
        try:
            if self.precision.rounds:
                engine.verify(losses)
            with self.precision.on(examples):
                return engine.accumulate(losses, weight=1 / self.recipe.batch_size)
        except NotFinite as fault:
            if self.noise is None:
                raise
            return frozenset(fault.rows)

    def _entry(self, step: int, tally: EpochStats) -> dict[str, float]:
        """One epoch's numbers; what is none is left out. Raises InputFault where the weights are none any more."""
        require_finite(self.network, step)
        tally.gather(self.workers)
        measured = self.evaluate(self.network) if self.workers.is_main else {}
        numbers = {"step": float(step), **tally.summary(self.recipe.clip_norm), **measured}
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    def _save(self, optimizer: torch.optim.Optimizer, tally: EpochStats, reached: SavedState) -> None:
        """Write the state that was ``reached``, whose tensors are yet to be collected."""
        tally.gather(self.workers)
        if self.folder is not None and self.workers.is_main:
            tensors = _state_tensors(self.network, optimizer) | tally.tensors() | dict(self.precision.tensors())
            self.folder.save(replace(reached, tensors=tensors))
        self.workers.barrier()  # torchrun ends the others as soon as one has left

    def _parting(self, step: int) -> str:
        done = f"interrupted after step {step} of {self.recipe.steps}"
        if self.folder is None:
            return done
        return f"{done}, whose state was saved in {self.folder.path}; go on with --resume and the same settings"


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, of zeros where no example came by."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _optimizer(parameters: Sequence[nn.Parameter], recipe: TrainingSettings) -> torch.optim.Optimizer:
    """Torch's own update rule; all of them take their gradient as it stands."""
    common: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer in (Optimizer.SGD, Optimizer.MOMENTUM):
        # Weight decay of torch's SGD is part of the gradient; the decoupled kind is what sensitivities are derived for.
        return _DecayedSGD(parameters, momentum=recipe.momentum, **common)
    # Torch's Adam adds weight decay to the gradient too; without any, AdamW is Adam.
    return torch.optim.AdamW(parameters, betas=(recipe.beta1, recipe.beta2), fused=True, **common)


class _DecayedSGD(torch.optim.SGD):
    """(Heavy-ball) gradient descent with decoupled weight decay: weights shrink first, then move."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum)
        self._decay = weight_decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if self._decay:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * self._decay)
        return super().step(closure)


def _state_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, buffers and the optimizer's moments by name."""
    found = {f"model.{name}": tensor for name, tensor in named_tensors(network).items()}
    for index, moments in optimizer.state_dict()["state"].items():
        for key, value in moments.items():
            if value is not None:
                found[f"optimizer.{index}.{key}"] = torch.as_tensor(value)
    return found


def _restore(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``_state_tensors`` took. Raises InputFault where it does not fit."""
    load_tensors(network, {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
