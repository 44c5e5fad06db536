"""A clip norm that follows a quantile of the norms of examples' gradients (Andrew et al. 2021).

Each step releases, of its batch, the sum of clipped gradients and how many of them are not clipped, both with Gaussian
noise; the next clip norm follows from what was released. Together the two are one Gaussian release, whose noise
multiplier is that of the ledger (docs/mechanisms.md#adaptive-clipping).

Source: Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping", section 3
and theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privctl.domain.checks import positive
from privctl.domain.guarantee import Assumption, AssumptionState

#: What a gradient adds to the count, less one half: from -1/2 (clipped) to 1/2.
HALF = 0.5
#: Noise on the count, by default: a share of the batch size, and at least so many noise multipliers.
_SHARE, _LEAST = 1 / 20, 2.0
#: The default learning rate of the clip norm.
LEARNING_RATE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClipping:
    """How a clip norm changes from step to step.

    ``quantile`` is the share of gradients that is not to be clipped, ``learning_rate`` that of the logarithm of the
    clip norm, ``count_stddev`` the standard deviation of the noise on the number of unclipped gradients of a batch.
    """

    quantile: float
    learning_rate: float
    count_stddev: float

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile is {self.quantile:g}; it must be above 0 and below 1")
        positive("learning_rate", self.learning_rate)
        positive("count_stddev", self.count_stddev)


def default_count_stddev(noise_multiplier: float, batch_size: float) -> float:
    """The paper's batch_size / 20, and more for small batches, so that the sum's noise grows by 3.3 % at most."""
    return max(_SHARE * batch_size, _LEAST * noise_multiplier)


def sum_noise_multiplier(noise_multiplier: float, count_stddev: float) -> float:
    """z_D, the noise on the sum in clip norms, so that sum and count together have ``noise_multiplier`` z.

    z^-2 = z_D^-2 + (2 count_stddev)^-2: one record moves the sum by a clip norm and the centred count by 1/2. Theorem 1
    of the paper: ``sum_noise_multiplier(1, 5)`` is 1.00504. Raises ValueError where the count alone exceeds z.
    """
    left = noise_multiplier**-2 - (count_stddev / HALF) ** -2
    if not left > 0:
        raise ValueError(
            f"unclipped_count_stddev is {count_stddev:g}; with a noise multiplier of {noise_multiplier:g} it must be "
            f"above {noise_multiplier * HALF:g}, since less noise on the count alone exceeds the budget"
        )
    return 1 / math.sqrt(left)


def counted_gradients(state: AssumptionState) -> Assumption:
    """What a guarantee rests on where each step makes two releases of one batch."""
    return Assumption(
        name="unclipped count",
        statement="each step releases of its batch, beside the sum, how many gradients are not clipped, counted from "
        "-1/2 to 1/2 each and with Gaussian noise of the stated standard deviation; so one record changes both "
        "together by no more than the noise multiplier is for, and clip norms follow from earlier releases alone",
        state=state,
    )


def adaptive_parameters(
    settings: AdaptiveClipping, sum_multiplier: float, clip_norms: Sequence[float]
) -> dict[str, Any]:
    """What a report says of a clip norm that changed: all of it was released, and is covered by its guarantee."""
    return {
        "target_unclipped_quantile": settings.quantile,
        "clip_norm_learning_rate": settings.learning_rate,
        "unclipped_count_stddev": settings.count_stddev,
        "sum_noise_multiplier": sum_multiplier,
        "clip_norms": list(clip_norms),
    }
