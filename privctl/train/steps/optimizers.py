"""The optimizers of a recipe, whose weight decay is no part of the gradient, and what is saved of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from privctl.domain.mechanism import Optimizer
from privctl.train.settings.recipe import TrainingSettings

_OPTIMIZER = "optimizer."


def optimizer_for(parameters: Sequence[nn.Parameter], recipe: TrainingSettings) -> torch.optim.Optimizer:
    """Torch's optimizer for the recipe, without any weight decay in the gradient."""
    common: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer in (Optimizer.SGD, Optimizer.MOMENTUM):
        # Weight decay of torch's SGD is part of the gradient; the decoupled kind is what sensitivities are derived for.
        return DecayedSGD(parameters, momentum=recipe.momentum, **common)
    # Torch's Adam adds weight decay to the gradient too; without any, AdamW is Adam.
    return torch.optim.AdamW(parameters, betas=(recipe.beta1, recipe.beta2), fused=True, **common)


class DecayedSGD(torch.optim.SGD):
    """(Heavy-ball) gradient descent with decoupled weight decay: weights shrink first, then move."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum)
        self._decay = weight_decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """See ``torch.optim.SGD``."""
        if self._decay:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * self._decay)
        return super().step(closure)


def moments(optimizer: torch.optim.Optimizer, as_saved: Callable[[int, Tensor], Tensor]) -> dict[str, Tensor]:
    """The optimizer's moments by name, each ``as_saved`` for the parameter of that number."""
    return {
        f"{_OPTIMIZER}{index}.{key}": as_saved(index, torch.as_tensor(value))
        for index, kept in optimizer.state_dict()["state"].items()
        for key, value in kept.items()
        if value is not None
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], own: Callable[[int, Tensor], Tensor]
) -> None:
    """Take back what ``moments`` gave; ``own`` gives this process's part of one, by the parameter's number."""
    state: dict[int, dict[str, Any]] = {}
    for name in tensors:
        if name.startswith(_OPTIMIZER):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = own(int(index), tensors[name])
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
