"""The event of sums along binary trees; ``privctl.domain.events`` has its row."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.buffered import require_followed
from privctl.domain.event import Batches, EventOption, SampledEvent
from privctl.domain.event_fields import Chance, Positive, Several, Steps
from privctl.domain.guarantee import Adjacency
from privctl.domain.ranges import COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGaussian(SampledEvent):
    """Gaussian noise on every node of binary trees over the steps' sums of clipped contributions (DP-FTRL).

    A tree has ``leaves`` steps and is followed by the next one; the last may have fewer. A node is the sum of the steps
    below it and is released, once they are complete, with noise of standard deviation / clip norm
    ``noise_multiplier``. Batches are ``Batches.FIXED_ORDER`` with passes of 1 / ``sample_rate`` steps, so that a record
    takes part once in each; a tree may end before, with or after a pass.

    Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu 2021, "Practical and Private (Deep) Learning without
    Sampling or Shuffling", appendix D; docs/theory.md#tree-aggregation.
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
        if self.sample_rate != 1 / self.steps_per_pass:
            raise ValueError(
                f"sample_rate is {self.sample_rate:g}; where every pass has one order it must be 1 over a whole number "
                "of steps, such as 0.01"
            )

    @property
    def steps_per_pass(self) -> int:
        """The number of steps of which each record takes part in one."""
        return round(1 / self.sample_rate) if self.sample_rate >= 2**-52 else 1

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``: the record's contribution zeroed, so that the others keep their steps."""
        return Adjacency.ZERO_OUT

    @property
    def batches_needed(self) -> Batches | None:
        """See ``Event``."""
        return Batches.FIXED_ORDER if self.sample_rate < 1 else None

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``: for one node and one clip norm."""
        return self.noise_multiplier

    @property
    def caption(self) -> str:
        """See ``Event``."""
        return (
            f"{self.steps:,} step{'s' * (self.steps != 1)} in passes of {self.steps_per_pass}, trees of "
            f"{self.leaves:,} steps, noise multiplier {self.noise_multiplier:.6g}"
        )
