"""A step by torch's GradScaler is refused with a sentence that says why, before anything is released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    import torch

#: GradScaler calls the step of an optimizer that has this, and looks for no gradients itself; none lie in ``.grad``.
_SUPPORTS = "_step_supports_amp_scaling"
#: What it sets for that step.
_SET = ("grad_scale", "found_inf")


class ScalerRefused:
    """Lets a GradScaler reach the step of ``optimizer``, where it can be told from a plain call."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before = vars(optimizer).get(_SUPPORTS)
        setattr(optimizer, _SUPPORTS, True)
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Leave the optimizer as it was."""
        self._hook.remove()
        if self._before is None:
            vars(self._optimizer).pop(_SUPPORTS, None)
        else:
            setattr(self._optimizer, _SUPPORTS, self._before)

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Mapping[str, Any]) -> None:
        """Raise CommandError where a GradScaler called the step; a plain step may follow."""
        found = [name for name in _SET if name in vars(self._optimizer)]
        for name in found:
            delattr(self._optimizer, name)
        if found:
            raise CommandError(
                "a GradScaler called optimizer.step(), and scaled losses are clipped by their scaled gradients; leave "
                "the scaler out, give backward the losses as they are, and call optimizer.step() itself (bfloat16 "
                "under autocast needs no scaler)"
            )
