"""Trains several shadow models at once, with stacked parameters and one pass of torch.func's vmap for all of them.

The time of small networks is mostly the overhead of launching operations; here one operation serves all models. All
models use the same stream of batches. Of each micro-batch, every model gets the examples in its own half, padded to the
longest with examples of weight 0. Update rules are elementwise, so a step on stacked parameters is a step of each
model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from privctl.domain.errors import InputError
from privctl.domain.mechanism import Optimizer
from privctl.domain.progress import Advance
from privctl.models.tasks.base import Task
from privctl.shadow.halves import stream_of
from privctl.shadow.pool import ShadowPool
from privctl.train.settings.recipe import TrainingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Converts the attention mask; vmap fails for networks that branch on the values of a two-dimensional mask.
_Masks = Callable[[dict[str, Tensor]], dict[str, Tensor]]
#: The relative tolerance between stacked and single gradients.
_CLOSE = 1e-3


def train_together(
    pool: ShadowPool,
    networks: Sequence[nn.Module],
    included: NDArray[np.bool_],
    device: torch.device,
    advance: Advance,
) -> str:
    """Train ``networks`` in place, model k on the records in ``included[k]`` [models, records].

    Returns "", or the reason why they cannot be trained together, in which case nothing was trained. Raises InputError
    if a training diverges.
    """
    for network in networks:
        network.to(device)
    with _eager(networks) as possible:
        stack = _Stack(pool, networks, included, device)
        reason = stack.choose_mask_form() if possible else "its attention has no plain form"
        if reason:
            return reason
        for step in range(pool.recipe.steps):
            stack.step(step)
            advance(len(networks))
        stack.hand_back(networks)
    return ""


class _Stack:
    """The stacked parameters of several networks, and their training steps."""

    def __init__(
        self, pool: ShadowPool, networks: Sequence[nn.Module], included: NDArray[np.bool_], device: torch.device
    ) -> None:
        parameters, self._buffers = stack_module_state(list(networks))
        chosen = {name for name, parameter in networks[0].named_parameters() if parameter.requires_grad}
        # only its structure is used
        self._shell = copy.deepcopy(networks[0])
        self._single = networks[0]
        self._trained = {name: nn.Parameter(parameters[name].detach()) for name in sorted(chosen)}
        self._fixed = {name: tensor.detach() for name, tensor in parameters.items() if name not in chosen}
        self._included = included
        self._task: Task = pool.task
        self._recipe = pool.recipe
        self._stream = stream_of(pool)
        self._device = device
        self._masks: _Masks = _as_it_is
        self._optimizer = _optimizer(list(self._trained.values()), pool.recipe)

    def choose_mask_form(self) -> str:
        """Choose a form of the mask for which stacked gradients equal single ones. Returns why there is none, or ""."""
        group = next(iter(self._groups(0)), [])[:4]
        batch = self._task.batch(group, self._device, 0)
        expected = self._first_gradient(batch)
        reason = ""
        for self._masks in (_as_it_is, _as_added_mask):
            everyone = torch.arange(len(group), device=self._device).expand(len(self._included), -1)
            try:
                gradients, _ = self._gradients(batch, everyone, torch.ones(everyone.shape, device=self._device))
            except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                continue
            size = torch.sqrt(sum((gradient.square().sum() for gradient in expected.values()), torch.zeros(())))
            apart = sum(
                ((gradients[n][0] - gradient).square().sum() for n, gradient in expected.items()), torch.zeros(())
            )
            if float(torch.sqrt(apart)) <= _CLOSE * float(size):
                return ""
            reason = "its gradients differ from those of one model at a time"
        return reason

    def step(self, step: int) -> None:
        """Make one update of every model."""
        for parameter in self._trained.values():
            parameter.grad = torch.zeros_like(parameter)
        for group in self._groups(step):
            self._accumulate(group, step)
        for settings in self._optimizer.param_groups:
            settings["lr"] = self._recipe.learning_rate_at(step)
            if isinstance(self._optimizer, torch.optim.SGD) and self._recipe.weight_decay:
                for parameter in settings["params"]:
                    parameter.data.mul_(1 - settings["lr"] * self._recipe.weight_decay)
        self._optimizer.step()

    def hand_back(self, networks: Sequence[nn.Module]) -> None:
        """Copy the parameters into the networks. Raises InputError if they are not finite."""
        for name, stacked in self._trained.items():
            if not torch.isfinite(stacked).all():
                raise InputError(f"parameter {name!r} of a shadow model holds NaN or infinity; lower --learning-rate")
        for k, network in enumerate(networks):
            parameters = dict(network.named_parameters())
            with torch.no_grad():
                for name, stacked in self._trained.items():
                    parameters[name].copy_(stacked[k])

    def _groups(self, step: int) -> Iterator[list[int]]:
        chosen = self._stream.batch(step).tolist()
        return self._task.micro_batches(chosen, step, self._recipe.micro_examples, self._recipe.micro_tokens)

    def _accumulate(self, group: Sequence[int], step: int) -> None:
        """Add the contribution of the micro-batch ``group`` to each model's gradient. Each example is a record."""
        belongs = self._included[:, list(group)]
        width = int(belongs.sum(axis=1).max())
        if not width:
            return
        # each model's own examples first; the rest of the row has weight 0
        order = np.argsort(~belongs, axis=1, kind="stable")[:, :width]
        weights = np.take_along_axis(belongs, order, axis=1).astype(np.float32) / self._recipe.batch_size
        batch = self._task.batch(group, self._device, step)
        counted = torch.from_numpy(weights).to(self._device, torch.float32)
        gradients, losses = self._gradients(batch, torch.from_numpy(order).to(self._device), counted)
        if not torch.isfinite(losses[counted > 0]).all():
            raise InputError("the loss of a shadow model is not finite; the training diverged: lower --learning-rate")
        for name, gradient in gradients.items():
            parameter = self._trained[name]
            assert parameter.grad is not None  # set by step
            parameter.grad += gradient

    def _gradients(
        self, batch: Mapping[str, Tensor], order: Tensor, weights: Tensor
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Each model's gradient of its weighted losses [models, ...], and the losses [models, width]."""

        def total(
            trained: Any, fixed: Any, buffers: Any, inputs: dict[str, Tensor], weight: Tensor
        ) -> tuple[Tensor, Tensor]:
            def network(**arguments: Any) -> Any:
                state = ({**trained, **fixed}, buffers)
                return functional_call(self._shell, state, (), arguments, tie_weights=True)

            losses = self._task.losses(network, self._masks(inputs))  # type: ignore[arg-type]  # it is only called
            return (losses * weight).sum(), losses

        batch_by_model = {name: tensor[order] for name, tensor in batch.items()}
        trained = {name: parameter.detach() for name, parameter in self._trained.items()}
        gradients, losses = vmap(grad(total, has_aux=True))(
            trained, self._fixed, self._buffers, batch_by_model, weights
        )
        return gradients, losses

    def _first_gradient(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first network's gradient of the summed losses, computed without vmap."""
        parameters = {name: p for name, p in self._single.named_parameters() if name in self._trained}
        losses = self._task.losses(self._single, batch)
        gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        return {
            n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), gradients, strict=True)
        }


def _optimizer(parameters: Sequence[nn.Parameter], recipe: TrainingSettings) -> torch.optim.Optimizer:
    """Torch's optimizer; ``_Stack.step`` adds the decoupled weight decay of gradient descent."""
    if recipe.optimizer in (Optimizer.SGD, Optimizer.MOMENTUM):
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, momentum=recipe.momentum)
    return torch.optim.AdamW(
        parameters,
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        weight_decay=recipe.weight_decay,
        fused=True,
    )


@contextmanager
def _eager(networks: Sequence[Any]) -> Iterator[bool]:
    """Use eager attention inside the block, which vmap supports. Yields whether the networks have it."""
    implementation = getattr(networks[0].config, "_attn_implementation", None)
    try:
        for network in networks:
            network.set_attn_implementation("eager")
    except (ValueError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        for network in networks:
            network.set_attn_implementation(implementation or "eager")


def _as_it_is(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return inputs


def _as_added_mask(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with an additive attention mask (n, 1, 1, length)."""
    if "attention_mask" not in inputs:
        return inputs
    hidden = (inputs["attention_mask"] == 0)[:, None, None, :].to(torch.float32)
    return {**inputs, "attention_mask": hidden * torch.finfo(torch.float32).min}
