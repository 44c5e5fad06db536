"""A clip norm that follows its gradients: whether a report's two releases a step, and its path of norms, fit together.

Restated from Andrew, Thakkar, McMahan and Ramaswamy 2021, theorem 1, with the trainer's code left aside. A record adds
to the sum a vector of at most a clip norm, under noise of z_D clip norms, and to the count at most 1/2, under noise of
standard deviation s. In standard deviations of the noise it moves both by at most sqrt(1 / z_D^2 + 1 / (2 s)^2) = 1 / z
together. From a clip norm to the next the logarithm moves by -eta (F - q), where F = N / (2 m B) + 1/2 is the unclipped
share by the noisy count N, and m is the most that a gradient adds to N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from verify.compare import compare
from verify.laws.common import chi_square_quantiles

#: Chance that the path of an honest run is called wrong.
_LEVEL = 1e-6
#: Norms beyond which no float32 number is clipped: where the path is held back, it says nothing of the count.
_LEAST, _MOST = 1e-12, 1e12
#: How much of the last noisy share goes into what the next is expected to be.
_FORGET = 0.1
_NAMES = (
    "target_unclipped_quantile", "clip_norm_learning_rate", "unclipped_count_stddev", "sum_noise_multiplier",
    "clip_norms",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedNorms:
    """What a report says of its clip norm; None where it says nothing. ``reduced``: passes were in bfloat16."""

    clip_norm: float | None
    clipping: str | None
    noise_multiplier: float | None
    batch_size: float | None
    updates: int | None
    reduced: bool
    target_unclipped_quantile: float | None
    clip_norm_learning_rate: float | None
    unclipped_count_stddev: float | None
    sum_noise_multiplier: float | None
    clip_norms: tuple[float, ...] | None

    @property
    def changes(self) -> bool:
        """Whether any of it speaks of a clip norm that changes."""
        return any(getattr(self, name) is not None for name in _NAMES)


def norms_disagree(stated: StatedNorms) -> Iterator[str]:
    """What is wrong with a clip norm that changes, a sentence each; nothing where it does not."""
    if not stated.changes:
        return
    missing = [name for name in _NAMES if getattr(stated, name) is None]
    if missing or stated.noise_multiplier is None or not stated.batch_size:
        yield f"its clip norm changed from step to step, but its parameters lack {', '.join(missing) or 'the noise'}"
        return
    on_sum, on_count = stated.sum_noise_multiplier or 0.0, stated.unclipped_count_stddev or 0.0
    rate, share = stated.clip_norm_learning_rate or 0.0, stated.target_unclipped_quantile or 0.0
    if not (on_sum > 0 and on_count > 0 and rate > 0 and 0 < share < 1):
        yield "its parameters of a changing clip norm hold a number that no training has"
        return
    together = 2 * on_count * on_sum / math.hypot(2 * on_count, on_sum)
    yield from compare(
        "parameter noise_multiplier", stated.noise_multiplier, together, "sum and count of a step together have"
    )
    if stated.clipping != "flat":
        yield f"its clip norm follows the norms of whole gradients, but its clipping is {stated.clipping}"
    yield from _path(stated.clip_norms or (), stated)


def _path(norms: Sequence[float], stated: StatedNorms) -> Iterator[str]:
    if not norms or not all(_LEAST / 2 <= norm <= _MOST for norm in norms):
        yield f"clip_norms holds a number that is not between {_LEAST:g} and {_MOST:g}, or none at all"
        return
    yield from compare("number of clip_norms", len(norms), (stated.updates or 0) + 1, "one more than the updates is")
    yield from compare("first of clip_norms", norms[0], stated.clip_norm, "clip_norm is")
    unit = 2 * _most_counted(stated.reduced) * (stated.batch_size or 0.0) / (stated.unclipped_count_stddev or 1.0)
    found = count_noise(norms, unit / (stated.clip_norm_learning_rate or 1.0))
    if found < 1:
        yield (
            f"the noise reported is not in clip_norms: they vary by {math.sqrt(found):.3g} times the least that counts "
            f"with noise of standard deviation {stated.unclipped_count_stddev:g} would make them vary"
        )


def count_noise(norms: Sequence[float], unit: float) -> float:
    """The variance that ``norms`` show of the counts, over the least that the noise alone leaves; below 1 it is absent.

    ``unit`` is what a logarithm's change of 1 is in standard deviations of that noise. Whatever a count is expected to
    be by what came before, its noise makes it miss that by no less than the noise alone would: the sum of squares is at
    least a chi-squared variable. Expected are the target, and a mean of earlier counts. Infinity where no step shows
    its count.
    """
    moves = [unit * math.log(after / before) for before, after in pairwise(norms) if _LEAST < after < _MOST]
    if not moves:
        return math.inf
    of_target = of_mean = mean = 0.0
    for move in moves:
        of_target += move * move
        of_mean += (move - mean) ** 2
        mean += _FORGET * (move - mean)
    return min(of_target, of_mean) / chi_square_quantiles(_LEVEL / 2, len(moves))[0]


def _most_counted(reduced: bool) -> float:
    """The most that one gradient adds to the centred count: 1/2, less what is left for rounding.

    The count falls linearly while a norm rises by the share w of the clip norm above and below it, so that all other
    norms, which rounding moves by the share m of the clip norm together, move it by m (1 + w) / (2 w).
    """
    margin, width = (2.0**-4, 0.5) if reduced else (2.0**-10, 0.125)
    return 0.5 - margin * (1 + width) / (2 * width)
