"""Events on batches in the same order in every pass: noise correlated by buffers, and sums along binary trees.

``privctl.domain.events`` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.event import Batches, EventOption, SampledEvent
from privctl.domain.event_fields import Chance, NotNegatives, Positive, Several, Steps
from privctl.domain.guarantee import Adjacency
from privctl.domain.ranges import BUFFERS, COUNT

#: The most steps, and passes, for which sensitivity is computed step by step.
_MOST_STEPS, _MOST_PASSES = 1_000_000, 10_000


def require_followed(steps_per_pass: int, steps: int) -> None:
    """Raise ValueError for more ``steps`` or passes than sensitivity can be computed for."""
    if steps > _MOST_STEPS:
        raise ValueError(f"steps is {steps}; correlated noise is supported for at most {_MOST_STEPS:,} steps")
    if (passes := -(-steps // steps_per_pass)) > _MOST_PASSES:
        raise ValueError(
            f"steps is {steps}, in which each record takes part {passes} times; with correlated noise it must be "
            f"{_MOST_PASSES:,} times at most"
        )


class FixedOrderEvent(SampledEvent):
    """Steps on ``Batches.FIXED_ORDER`` batches: a record takes part once per pass of 1 / ``sample_rate`` steps."""

    @property
    def steps_per_pass(self) -> int:
        """The number of steps in a pass."""
        return round(1 / self.sample_rate) if self.sample_rate >= 2**-52 else 1

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``: the record's contribution is zeroed, so the other records keep their steps."""
        return Adjacency.ZERO_OUT

    @property
    def batches_needed(self) -> Batches | None:
        """See ``Event``."""
        return Batches.FIXED_ORDER if self.sample_rate < 1 else None

    def _require_whole_passes(self) -> None:
        """Raise ValueError unless the sampling rate is 1 over a whole number of steps."""
        if self.sample_rate != 1 / self.steps_per_pass:
            raise ValueError(
                f"sample_rate is {self.sample_rate:g}; with the same order in every pass it must be 1 over a whole "
                "number of steps, such as 0.01"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedGaussian(FixedOrderEvent):
    """Gaussian noise on C X, where row t of X is the sum of clipped contributions of step t (DP-MF by a BLT).

    C is the lower triangular Toeplitz matrix with c_0 = ``first`` and c_t = sum_j ``weights[j]`` * ``decays[j]``^(t-1):
    a buffered linear Toeplitz matrix. Noise of ``noise_multiplier`` clip norms on C X is noise C^-1 Z on X. Batches are
    ``Batches.FIXED_ORDER`` with passes of 1 / ``sample_rate`` steps, so that a record takes part once in each.

    Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024, "Efficient and Near-Optimal Noise Generation for
    Streaming Differential Privacy"; McMahan, Xu and Zhang 2024, "A Hassle-free Algorithm for Private Learning in
    Practice"; docs/mechanisms.md#buffered-noise.
    """

    tag = "buffered-gaussian"
    mechanism = "blt"
    options = (
        EventOption(
            name="buffers",
            help="blt: buffers by which noise is correlated over all steps.  [default: the best of 1 to 5]",
            kind=int,
            within=BUFFERS,
        ),
    )

    noise_multiplier: Positive
    first: Positive
    weights: NotNegatives
    decays: NotNegatives
    sample_rate: Chance = 1.0
    steps: Steps = 1

    def _check_together(self) -> None:
        if len(self.weights) != len(self.decays) or not 1 <= len(self.decays) <= BUFFERS.high:
            raise ValueError(f"decays and weights must have the same length, from 1 to {BUFFERS.high:g}")
        if not all(decay < 1 for decay in self.decays):
            raise ValueError(f"decays holds {max(self.decays):g}; each must be below 1")
        if not sum(self.weights) <= self.first:
            raise ValueError("weights add up to more than first; no column of the matrix may rise")
        require_followed(self.steps_per_pass, self.steps)
        self._require_whole_passes()

    @property
    def buffers(self) -> int:
        """Number of buffers."""
        return len(self.decays)

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``: for a matrix scaled so that one record moves C X by at most one clip norm."""
        return self.noise_multiplier

    @property
    def caption(self) -> str:
        """See ``Event``."""
        return (
            f"{self.steps:,} step{'s' * (self.steps != 1)} in passes of {self.steps_per_pass}, noise correlated by "
            f"{len(self.decays)} buffer{'s' * (len(self.decays) != 1)}, noise multiplier {self.noise_multiplier:.6g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGaussian(FixedOrderEvent):
    """Gaussian noise on every node of binary trees over the steps' sums of clipped contributions (DP-FTRL).

    A tree has ``leaves`` steps; the last one may have fewer. A node is the sum of the steps below it and is released,
    once they are complete, with noise of standard deviation ``noise_multiplier`` times the clip norm. Batches are
    ``Batches.FIXED_ORDER`` with passes of 1 / ``sample_rate`` steps, so that a record takes part once in each; trees
    need not end where passes do.

    Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu 2021, "Practical and Private (Deep) Learning without
    Sampling or Shuffling", appendix D; docs/mechanisms.md#tree-aggregation.
    """

    tag = "tree-gaussian"
    mechanism = "tree"
    options = (
        EventOption(
            name="tree_steps",
            help="tree: steps after which a tree of sums ends and the next begins.",
            field="leaves",
            kind=int,
            within=COUNT,
        ),
    )

    noise_multiplier: Positive
    leaves: Several
    sample_rate: Chance = 1.0
    steps: Steps = 1

    def _check_together(self) -> None:
        if self.leaves != self.steps_per_pass:
            require_followed(self.steps_per_pass, self.steps)
        self._require_whole_passes()

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``: of one node, relative to one clip norm."""
        return self.noise_multiplier

    @property
    def caption(self) -> str:
        """See ``Event``."""
        return (
            f"{self.steps:,} step{'s' * (self.steps != 1)} in passes of {self.steps_per_pass}, trees of "
            f"{self.leaves:,} steps, noise multiplier {self.noise_multiplier:.6g}"
        )
