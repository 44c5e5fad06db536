"""Gaussian noise with other neighbours than one record more or less, or with other batches than plain Poisson ones."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from privctl.domain.event import Batches, Event, EventOption, SampledEvent
from privctl.domain.event_fields import Chance, Examples, Positive, Several, StatedNeighbours, Steps
from privctl.domain.guarantee import Adjacency
from privctl.domain.ranges import COUNT, IN_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGaussian(SampledEvent):
    """Gaussian noise on a sum of clipped contributions of a Poisson batch, as it protects a group; ``steps`` times.

    A group is at most ``group_size`` records that belong together, such as one user's, and is the unit of privacy. Each
    record is clipped separately and enters each batch independently. ``noise_multiplier`` is noise standard deviation /
    clip norm of one record.
    """

    tag = "group-gaussian"
    mechanism = "group-gaussian"
    options = (
        EventOption(
            name="group_size",
            help="group-gaussian: the most records of one user (or other group), which are protected together.",
            field="group_size",
            kind=int,
            within=IN_GROUP,
        ),
    )
    contribution = (
        "one example is a group of records, each of which enters batches on its own and changes what noise is added to "
        "by the clip norm at most"
    )

    noise_multiplier: Positive
    group_size: Several
    sample_rate: Chance = 1.0
    steps: Steps = 1

    def _check_together(self) -> None:
        IN_GROUP.require("group_size", self.group_size)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: each record of the group is sampled independently."""
        return (self.sample_rate,) * self.group_size

    @property
    def composes_with(self) -> Hashable:
        """See ``Event``: groups of the same size."""
        return (self.tag, self.group_size)

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        return "events that protect a group compose only with those that protect a group of the same size"

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``: relative to one record's clip norm."""
        return self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedGaussian(SampledEvent):
    """Gaussian noise on a sum of clipped contributions of a Poisson batch, for replace-one adjacency; ``steps`` times.

    ``noise_multiplier`` is noise standard deviation / clip norm. The original and its replacement are in the same
    batches, so batch sizes are equal on both sides.
    """

    tag = "replace-one-gaussian"
    mechanism = "replace-one-gaussian"

    noise_multiplier: Positive
    sample_rate: Chance = 1.0
    steps: Steps = 1

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``."""
        return Adjacency.REPLACE_ONE

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        return "events that protect against replacing a record compose only with events that do"

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``."""
        return self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedGaussian(SampledEvent):
    """Gaussian noise on a sum of clipped contributions of a truncated Poisson batch, ``steps`` times.

    If a Poisson batch has more than ``largest_batch`` examples, a uniformly drawn subset of that size is kept. Steps
    can then be compiled for a fixed batch size. ``examples`` is the size of the larger of the two neighbouring data
    sets. ``noise_multiplier`` is noise standard deviation / clip norm.
    """

    tag = "truncated-gaussian"
    mechanism = "truncated-poisson"
    options = (
        EventOption(
            name="largest_batch",
            help="truncated-poisson: the most examples in a batch; larger batches are cut to this size at random.",
            field="largest_batch",
            kind=int,
            within=COUNT,
        ),
    )

    noise_multiplier: Positive
    largest_batch: Examples
    examples: Examples
    sample_rate: Chance
    steps: Steps = 1

    @property
    def holds_zeroed(self) -> bool:
        """See ``Event``: a zeroed record keeps its place in a full batch."""
        return False

    @property
    def batches_needed(self) -> Batches:
        """See ``Event``: truncated even if every record would be in every batch."""
        return Batches.TRUNCATED_POISSON

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``."""
        return self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrawnGaussian(Event):
    """Gaussian noise on a sum of clipped contributions of ``draws`` examples with replacement, ``steps`` times.

    Each of the ``draws`` places of a batch holds any of the ``examples`` with equal probability, so the number of times
    that a record occurs is binomial. ``examples`` is the size of the larger of the two neighbouring data sets, which
    differ as ``neighbours`` says. ``noise_multiplier`` is noise standard deviation / clip norm.
    """

    tag = "redrawn-gaussian"
    mechanism = "with-replacement"
    contribution = "one example changes what noise is added to by the clip norm at most, each time that it is drawn"

    noise_multiplier: Positive
    examples: Examples
    draws: Several
    steps: Steps = 1
    neighbours: StatedNeighbours = Adjacency.ADD_OR_REMOVE

    def _check_together(self) -> None:
        IN_GROUP.require("draws", self.draws)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: the probability of being drawn at least once."""
        return (-math.expm1(self.draws * math.log1p(-1 / self.examples)) if self.examples > 1 else 1.0,)

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``."""
        return self.neighbours

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        return "the events use different adjacencies, so they do not compose; state the same neighbours for each"

    @property
    def holds_zeroed(self) -> bool:
        """See ``Event``: a zeroed record is still drawn in place of others, so bounds for removal do not apply."""
        return self.neighbours is Adjacency.ZERO_OUT

    @property
    def batches_needed(self) -> Batches:
        """See ``Event``: needed even if every example is surely drawn, as one more example changes the draws."""
        return Batches.WITH_REPLACEMENT

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``."""
        return self.noise_multiplier
