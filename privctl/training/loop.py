"""The training loop: batches, clipped gradients, noise, updates, state.

One step does what its ``Recipe`` says and nothing else, so that the report's mechanism is what was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputFault
from privctl.domain.mechanism import Optimizer
from privctl.parallel import Crew
from privctl.training.batches import BatchSource
from privctl.training.noise import GradientNoise
from privctl.training.perexample.clipping import Clipping
from privctl.training.perexample.engine import PerExample
from privctl.training.recipe import Recipe
from privctl.training.state import RunFolder, Saved
from privctl.training.tasks.base import Task
from privctl.training.tensors import named_tensors

#: Called after every step with the updates done.
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that came to its end: ``step`` updates, ``spent`` steps begun, one entry of ``history`` an epoch."""

    step: int
    spent: int
    history: tuple[Mapping[str, float], ...]


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen of the private examples since the last epoch's end; for the owner's eyes only."""

    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)

    def summary(self, clip_norm: float) -> dict[str, float]:
        """Mean loss, median norm and the share of clipped gradients; empties the tally."""
        if not self.losses:
            return {}
        losses = torch.cat(self.losses).double()
        found = {"training_loss": float(losses.mean())}
        if self.norms:
            norms = torch.cat(self.norms).double()
            found["clipped_fraction"] = float((norms > clip_norm).double().mean())
            found["median_norm"] = float(norms.median())
        self.losses.clear()
        self.norms.clear()
        return found


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run of ``recipe`` on ``network``, whose parameters that require a gradient are trained; call ``run`` once.

    ``noise`` is None where the recipe has none. ``evaluate`` measures the network on held-out data after each epoch.
    ``folder`` None keeps no state. ``save_every`` is in seconds.
    """

    network: nn.Module
    task: Task
    recipe: Recipe
    clipping: Clipping | None
    batches: BatchSource
    noise: GradientNoise | None
    crew: Crew
    device: torch.device
    folder: RunFolder | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    advance: Advance = lambda _: None
    clock: Callable[[], float] = time.monotonic
    save_every: float = 300.0

    def run(self, start: Saved | None = None) -> Finished:
        """Train to the end, or until the budget of begun steps is spent.

        Raises InputFault where a loss, a gradient or a weight is not finite. After an interrupt the last saved state
        is what a resumed run goes on from.
        """
        step, spent, history = 0, 0, list(start.history) if start else []
        optimizer = _optimizer(self._trainable(), self.recipe)
        if start is not None:
            step, spent = start.step, start.spent
            if start.tensors:
                _restore(self.network, optimizer, start.tensors)
        tally, last_save = Tally(), self.clock()
        with self._gradients() as engine:
            while self._counted(step, spent) < self.recipe.steps:
                if self.folder is not None and self.crew.leads:
                    self.folder.mark(spent + 1)
                self._step(engine, optimizer, step, spent, tally)
                step, spent = step + 1, spent + 1
                self.advance(1)
                ended = step % self.recipe.steps_per_epoch == 0 or self._counted(step, spent) == self.recipe.steps
                if ended:
                    history.append(self._entry(step, tally))
                if ended or self.clock() - last_save > self.save_every:
                    self._save(optimizer, step, spent, history)
                    last_save = self.clock()
        return Finished(step=step, spent=spent, history=tuple(history))

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
        self, engine: PerExample | None, optimizer: torch.optim.Optimizer, step: int, spent: int, tally: Tally
    ) -> None:
        """One update from one batch; ``spent`` counts the noise, which is never used twice."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad = None  # is written, not added to: one pass over it less than from zeros
        # Secret draws are never repeated; an order that is public must go on where it stopped.
        place = self._counted(step, spent)
        chosen = self.crew.share(self.batches.batch(place)).tolist()
        for micro in self.task.micro_batches(chosen, place, self.recipe.micro_examples, self.recipe.micro_tokens):
            self._accumulate(engine, micro, place, tally)
        gradients = [_gradient(p) for p in parameters]
        if self.noise is not None and self.crew.leads:
            stddev = self.recipe.noise_multiplier * self.recipe.clip_norm / self.recipe.batch_size
            self.noise.add(gradients, stddev, spent)
        self.crew.total(gradients)
        for group in optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(step)
        optimizer.step()

    def _accumulate(self, engine: PerExample | None, examples: Sequence[int], place: int, tally: Tally) -> None:
        """Add the examples' part of the step's gradient: their sum by the expected batch size."""
        inputs = self.task.batch(examples, self.device, place)

        def losses() -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
                return self.task.losses(self.network, inputs)

        if engine is not None:
            found = engine.accumulate(losses, weight=1 / self.recipe.batch_size)
            tally.losses.append(found.losses.detach())
            tally.norms.append(found.norms.detach())
            return
        each = losses()
        if not torch.isfinite(each).all():
            raise InputFault("the loss is not finite; the training diverged: lower --learning-rate, or check the model")
        torch.autograd.backward(each.sum() / self.recipe.batch_size)
        tally.losses.append(each.detach())

    def _entry(self, step: int, tally: Tally) -> dict[str, float]:
        """One epoch's numbers. Raises InputFault where the weights are no numbers any more."""
        for name, parameter in self.network.named_parameters():
            if not torch.isfinite(parameter).all():
                raise InputFault(
                    f"parameter {name!r} holds NaN or infinity after step {step}; the training diverged: lower "
                    "--learning-rate, or raise --batch-size"
                )
        measured = self.evaluate(self.network) if self.crew.leads else {}
        return {"step": float(step), **tally.summary(self.recipe.clip_norm), **measured}

    def _save(
        self, optimizer: torch.optim.Optimizer, step: int, spent: int, history: Sequence[Mapping[str, float]]
    ) -> None:
        if self.folder is not None and self.crew.leads:
            tensors = _state_tensors(self.network, optimizer)
            self.folder.save(Saved(step=step, spent=spent, tensors=tensors, history=tuple(history)))
        self.crew.wait()


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, of zeros where no example came by."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _optimizer(parameters: Sequence[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
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
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    found = network.load_state_dict(weights, strict=False)
    alone = {name for name, _ in network.named_parameters()}
    if found.unexpected_keys or alone & set(found.missing_keys):
        raise InputFault("the saved state is of another model; resume with the model the run began with")
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
