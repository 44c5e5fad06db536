"""A clip norm that tracks a quantile of the per-example gradient norms (Andrew et al. 2021).

Each step releases two values of its batch with Gaussian noise: the sum of clipped gradients, and the number of
gradients that are not clipped. The next clip norm is computed from these. Together the two are a single Gaussian
release, whose noise multiplier is the one in the ledger (docs/mechanisms.md#adaptive-clipping).

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

#: The sensitivity of the centred count, to which a gradient adds -1/2 if it is clipped and 1/2 if it is not.
COUNT_SENSITIVITY = 0.5
#: The default noise on the count: this fraction of the batch size, and at least this multiple of the noise multiplier.
_SHARE, _LEAST = 1 / 20, 2.0
#: The default learning rate of the clip norm.
LEARNING_RATE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClipping:
    """How a clip norm changes from step to step.

    ``quantile`` is the target fraction of gradients that are not clipped, ``learning_rate`` is for updates of the
    logarithm of the clip norm, and ``count_stddev`` is the standard deviation of the noise on a batch's number of
    unclipped gradients. Raises ValueError for values out of range.
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
    """The paper's batch_size / 20, or more for small batches, so that the sum's noise grows by at most 3.3 %."""
    return max(_SHARE * batch_size, _LEAST * noise_multiplier)


def sum_noise_multiplier(noise_multiplier: float, count_stddev: float) -> float:
    """The noise multiplier z_D of the sum with which sum and count together have ``noise_multiplier`` z.

    z^-2 = z_D^-2 + (2 count_stddev)^-2, as one record changes the sum by a clip norm and the centred count by 1/2
    (theorem 1 of the paper). ``sum_noise_multiplier(1, 5)`` is 1.00504. Raises ValueError if the count alone costs more
    than z allows.
    """
    left = noise_multiplier**-2 - (count_stddev / COUNT_SENSITIVITY) ** -2
    if not left > 0:
        raise ValueError(
            f"unclipped_count_stddev is {count_stddev:g}; with a noise multiplier of {noise_multiplier:g} it must be "
            f"above {noise_multiplier * COUNT_SENSITIVITY:g}, since less noise on the count alone exceeds the budget"
        )
    return 1 / math.sqrt(left)


def counted_gradients(state: AssumptionState) -> Assumption:
    """The assumption of a guarantee for steps that release both a sum and a count of the same batch."""
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
    """The report's parameters of adaptive clipping. The clip norms were released, so the guarantee covers them."""
    return {
        "target_unclipped_quantile": settings.quantile,
        "clip_norm_learning_rate": settings.learning_rate,
        "unclipped_count_stddev": settings.count_stddev,
        "sum_noise_multiplier": sum_multiplier,
        "clip_norms": list(clip_norms),
    }
