"""Adaptive clipping: whether the two noise scales of a step and the sequence of clip norms are consistent.

Derived from Andrew, Thakkar, McMahan and Ramaswamy 2021, theorem 1, independently of the trainer's code. A record adds
to the sum a vector of at most one clip norm, under noise of z_D clip norms, and to the count at most 1/2, under noise
of standard deviation s. In standard deviations of the noise it moves both together by at most
sqrt(1 / z_D^2 + 1 / (2 s)^2) = 1 / z. From one clip norm to the next, the logarithm changes by -eta (F - q), where
F = N / (2 m B) + 1/2 is the fraction of unclipped gradients by the noisy count N, and m is the most that a gradient
adds to N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from verify.compare import compare
from verify.laws.common import chi_square_quantiles

#: Significance level: the probability that the sequence of an honest run is refuted.
_LEVEL = 1e-6
#: The trainer keeps clip norms within these limits; a clip norm at a limit says nothing about the count.
_LEAST, _MOST = 1e-12, 1e12
#: The weight of the latest noisy count in the exponential moving average that predicts the next.
_FORGET = 0.1
#: The parameters of a training that only one with a changing clip norm states.
CHANGING = (
    "target_unclipped_quantile", "clip_norm_learning_rate", "unclipped_count_stddev", "sum_noise_multiplier",
    "clip_norms",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedNorms:
    """A report's entries on its clip norm, None if not stated. ``reduced`` is whether passes were in bfloat16."""

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
        """Whether any entry is about an adaptive clip norm."""
        return any(getattr(self, name) is not None for name in CHANGING)


def norms_disagree(stated: StatedNorms) -> Iterator[str]:
    """Yields one sentence per fault in the entries of an adaptive clip norm; nothing if the clip norm is constant."""
    if not stated.changes:
        return
    missing = [name for name in CHANGING if getattr(stated, name) is None]
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
    ratio = count_noise(norms, unit / (stated.clip_norm_learning_rate or 1.0))
    if ratio < 1:
        yield (
            f"the noise reported is not in clip_norms: they vary by {math.sqrt(ratio):.3g} times the least that counts "
            f"with noise of standard deviation {stated.unclipped_count_stddev:g} would make them vary"
        )


def count_noise(norms: Sequence[float], unit: float) -> float:
    """The variance of the counts that ``norms`` reveal, relative to the least that the noise explains.

    A result below 1 means that the noise is absent. ``unit`` is the number of standard deviations of the noise that
    correspond to a change of 1 in the logarithm. Whatever prediction is made from earlier counts, the noise alone makes
    the next count miss it, so the sum of squared errors is stochastically at least a chi-squared variable. Two
    predictions are tried: the target, and a moving average of earlier counts. Infinity if no step reveals its count.
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
    """The most that one gradient adds to the centred count: 1/2, less a margin for rounding.

    The count falls linearly while a norm rises from (1 - w) to (1 + w) clip norms. Rounding may move the other norms
    by a fraction m of the clip norm in total, and so the count by m (1 + w) / (2 w).
    """
    margin, width = (2.0**-4, 0.5) if reduced else (2.0**-10, 0.125)
    return 0.5 - margin * (1 + width) / (2 * width)
