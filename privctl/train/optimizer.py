"""The rules by which weights move along released gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from privctl.domain.mechanism import Optimizer
from privctl.train.settings import TrainingSettings


def optimizer_of(parameters: Sequence[nn.Parameter], recipe: TrainingSettings) -> torch.optim.Optimizer:
    """Torch's optimizer for the recipe, without any weight decay in the gradient."""
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
