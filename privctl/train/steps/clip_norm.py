"""Adaptive clipping: a clip norm that follows a quantile of the norms of the examples' gradients.

What a gradient adds to the count is continuous: it falls from 1/2 to -1/2 as its norm rises past the clip norm. With a
jump, adding a record could flip the bit of another record whose norm is at the clip norm, by float rounding alone. As
it is, rounding moves the count by no more than the fraction of 1/2 that is left for it, just as it moves the sum by no
more than the fraction of the clip norm that is left for it (``clipping.factors.rounding_margin``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from privctl.train.clipping.factors import LARGEST_NORM, SMALLEST_NORM, rounding_margin
from privctl.train.settings.adaptive_clipping import COUNT_SENSITIVITY, AdaptiveClipping, sum_noise_multiplier
from privctl.train.settings.recipe import TrainingSettings

_NORMS = "clip.norms"
#: Relative half-width of the ramp around the clip norm; wider if more is left for rounding.
_RAMP, _RAMP_REDUCED = 2.0**-3, 2.0**-1


class AdaptiveClipNorm:
    """The clip norm of each step; ``norms`` holds those of all completed steps, followed by that of the next."""

    def __init__(
        self,
        settings: AdaptiveClipping,
        *,
        initial: float,
        noise_multiplier: float,
        batch_size: float,
        reduced: bool = False,
    ) -> None:
        """``noise_multiplier`` is that of sum and count together; ``reduced`` means that passes are in bfloat16."""
        self._settings, self._batch_size = settings, batch_size
        self._multiplier = sum_noise_multiplier(noise_multiplier, settings.count_stddev)
        self._leave(reduced=reduced)
        self.norms = [initial]

    def leave_more(self) -> None:
        """Leave what passes in bfloat16 need for rounding from now on."""
        self._leave(reduced=True)

    def _leave(self, *, reduced: bool) -> None:
        self._margin = rounding_margin(reduced=reduced)
        self._ramp = _RAMP_REDUCED if reduced else _RAMP
        # Rounding moves the norms near the clip norm C by at most (1 + ramp) margin C in total, and their contributions
        # to the count by 1 / (2 ramp C) times as much.
        self._bound = COUNT_SENSITIVITY - self._margin * (1 + self._ramp) / (2 * self._ramp)

    @property
    def current(self) -> float:
        """The clip norm of the next step, which bounds how much a record moves the sum."""
        return self.norms[-1]

    @property
    def clipped_to(self) -> float:
        """The norm that gradients are clipped to, which leaves a margin below the clip norm."""
        return self.current * (1 - self._margin)

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise on the next step's sum, which is divided by the expected batch size."""
        return self._multiplier * self.current / self._batch_size

    def count_of(self, norms: Tensor) -> Tensor:
        """What gradients with ``norms`` (n,) add to the centred count, each from about -1/2 (clipped) to 1/2."""
        places = (self.current - norms.double()) / (2 * self._ramp * self.current)
        return 2 * self._bound * places.clamp(-COUNT_SENSITIVITY, COUNT_SENSITIVITY).sum()

    def scaled_count(self, gradients: Sequence[Tensor], count: Tensor) -> Tensor:
        """The ``count`` (1,) on the gradients' device, scaled so that it needs the same noise as the sum."""
        return (count * self._unit).reshape(1).to(gradients[0].device, torch.float64)

    def update(self, noisy: float) -> None:
        """Set the next clip norm from the result of ``scaled_count`` with noise added."""
        settings = self._settings
        unclipped = noisy / self._unit / (2 * self._bound * self._batch_size) + COUNT_SENSITIVITY
        log_norm = math.log(self.current) - settings.learning_rate * (unclipped - settings.quantile)
        self.norms.append(min(max(math.exp(min(max(log_norm, -700.0), 700.0)), SMALLEST_NORM), LARGEST_NORM))

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs; all of it was released."""
        return {_NORMS: torch.tensor(self.norms, dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from ``tensors`` if they hold a saved state."""
        if _NORMS in tensors:
            self.norms = tensors[_NORMS].tolist()

    @property
    def _unit(self) -> float:
        return self.stddev / self._settings.count_stddev


def adaptive_norm(recipe: TrainingSettings) -> AdaptiveClipNorm | None:
    """The adaptive clip norm at the start of a run of ``recipe``; None if its clip norm is fixed."""
    if recipe.adaptive is None:
        return None
    return AdaptiveClipNorm(
        recipe.adaptive,
        initial=recipe.clip_norm,
        noise_multiplier=recipe.noise_multiplier,
        batch_size=recipe.batch_size,
        reduced=recipe.bf16,
    )
