"""The clip norm of a running training, which follows a quantile of the norms of its examples' gradients.

What a gradient adds to the count has no jump: it falls from 1/2 to -1/2 while its norm rises past the clip norm. With a
jump, adding a record could flip the bit of another whose norm lies at the clip norm, by float rounding alone. As it is,
rounding moves the count by no more than the share of 1/2 that is left for it, just as it moves the sum by no more than
the share of the clip norm that is left for that (``clipping.factors.rounding_margin``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from privctl.train.clipping.factors import LEAST_NORM, MOST_NORM, rounding_margin
from privctl.train.settings.adaptive_clipping import COUNT_SENSITIVITY, AdaptiveClipping, sum_noise_multiplier
from privctl.train.settings.recipe import TrainingSettings

_NORMS = "clip.norms"
#: How far from the clip norm, relatively, a gradient counts in part; wider where more is left for rounding.
_RAMP, _RAMP_REDUCED = 2.0**-3, 2.0**-1


class AdaptiveClipNorm:
    """The clip norm of each step; ``norms`` holds those of all steps made, and last that of the next."""

    def __init__(
        self,
        settings: AdaptiveClipping,
        *,
        initial: float,
        noise_multiplier: float,
        batch_size: float,
        reduced: bool = False,
    ) -> None:
        """``noise_multiplier`` is that of sum and count together; ``reduced``: passes are in bfloat16."""
        self._settings, self._batch_size = settings, batch_size
        self._multiplier = sum_noise_multiplier(noise_multiplier, settings.count_stddev)
        self._margin = rounding_margin(reduced=reduced)
        self._ramp = _RAMP_REDUCED if reduced else _RAMP
        # Rounding moves the norms near the clip norm C by (1 + ramp) margin C together, and what they add to the count
        # by 1 / (2 ramp C) times as much.
        self._most = COUNT_SENSITIVITY - self._margin * (1 + self._ramp) / (2 * self._ramp)
        self.norms = [initial]

    @property
    def current(self) -> float:
        """The clip norm of the next step: no record moves the sum by more."""
        return self.norms[-1]

    @property
    def clipped_to(self) -> float:
        """What gradients are clipped to: a margin below the clip norm."""
        return self.current * (1 - self._margin)

    @property
    def stddev(self) -> float:
        """Of the noise on the sum of the next step, which is divided by the expected batch size."""
        return self._multiplier * self.current / self._batch_size

    def counted(self, norms: Tensor) -> Tensor:
        """What gradients with ``norms`` (n,) add to the centred count: from -1/2 (clipped) to 1/2 each, in all."""
        places = (self.current - norms.double()) / (2 * self._ramp * self.current)
        return 2 * self._most * places.clamp(-COUNT_SENSITIVITY, COUNT_SENSITIVITY).sum()

    def beside(self, gradients: Sequence[Tensor], count: Tensor) -> Tensor:
        """The ``count`` in a unit in which it takes the noise of the sum, as one number more on their device."""
        return (count * self._unit).reshape(1).to(gradients[0].device, torch.float64)

    def follow(self, noisy: float) -> None:
        """Set the next clip norm by what ``beside`` gave, once noise was added to it."""
        settings = self._settings
        unclipped = noisy / self._unit / (2 * self._most * self._batch_size) + COUNT_SENSITIVITY
        moved = math.log(self.current) - settings.learning_rate * (unclipped - settings.quantile)
        self.norms.append(min(max(math.exp(min(max(moved, -700.0), 700.0)), LEAST_NORM), MOST_NORM))

    def tensors(self) -> dict[str, Tensor]:
        """What a run that goes on needs; all of it was released."""
        return {_NORMS: torch.tensor(self.norms, dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what ``tensors`` gave, where the run was saved."""
        if _NORMS in tensors:
            self.norms = tensors[_NORMS].tolist()

    @property
    def _unit(self) -> float:
        return self.stddev / self._settings.count_stddev


def adaptive_norm(recipe: TrainingSettings) -> AdaptiveClipNorm | None:
    """The clip norm of a run of ``recipe``, at its beginning; None where it does not change."""
    if recipe.adaptive is None:
        return None
    return AdaptiveClipNorm(
        recipe.adaptive,
        initial=recipe.clip_norm,
        noise_multiplier=recipe.noise_multiplier,
        batch_size=recipe.batch_size,
        reduced=recipe.bf16,
    )
