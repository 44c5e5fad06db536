"""The optimizers of a recipe, with decoupled weight decay, and their saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from privctl.domain.mechanism import Optimizer
from privctl.train.settings.recipe import TrainingSettings

_OPTIMIZER = "optimizer."


def optimizer_for(parameters: Sequence[nn.Parameter], recipe: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer of ``recipe``, with decoupled weight decay."""
    common: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer in (Optimizer.SGD, Optimizer.MOMENTUM):
        # Torch's SGD adds weight decay to the gradient; sensitivities are derived for the decoupled kind.
        return DecayedSGD(parameters, momentum=recipe.momentum, **common)
    # Torch's Adam also adds weight decay to the gradient; without weight decay AdamW is Adam.
    return torch.optim.AdamW(parameters, betas=(recipe.beta1, recipe.beta2), fused=True, **common)


class DecayedSGD(torch.optim.SGD):
    """SGD with optional heavy-ball momentum and decoupled weight decay: weights shrink first, then move."""

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
    """The optimizer's moments by name, each converted by ``as_saved``, which gets the parameter's index."""
    return {
        f"{_OPTIMIZER}{index}.{key}": as_saved(index, torch.as_tensor(value))
        for index, kept in optimizer.state_dict()["state"].items()
        for key, value in kept.items()
        if value is not None
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], own: Callable[[int, Tensor], Tensor]
) -> None:
    """Restore what ``moments`` returned; ``own`` gives this process's part of a moment, by the parameter's index."""
    state: dict[int, dict[str, Any]] = {}
    for name in tensors:
        if name.startswith(_OPTIMIZER):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = own(int(index), tensors[name])
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
