"""Events of which only a guarantee or Renyi divergences are known, not the distribution of the loss, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from privctl.domain.checks import fraction
from privctl.domain.event import Batches, Event, EventOption, SampledEvent
from privctl.domain.event_fields import (
    Chance,
    NotNegative,
    NotNegativeIfGiven,
    OneOrMore,
    Positive,
    StatedNeighbours,
    Steps,
)
from privctl.domain.guarantee import Adjacency
from privctl.domain.ranges import FRACTION, LOG_ODDS, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaDp(SampledEvent):
    """Any mechanism that is (``epsilon``, ``delta``)-differentially private for ``neighbours``, ``steps`` times."""

    tag = "approximate-dp"
    mechanism = "approximate-dp"
    options = (
        EventOption(
            name="step_epsilon",
            help="approximate-dp: epsilon of one step, on a batch that holds the record.",
            field="epsilon",
            within=LOG_ODDS,
        ),
        EventOption(
            name="step_delta",
            help="approximate-dp: delta of one step, on a batch that holds the record.  [default: 0]",
            field="delta",
            within=FRACTION,
        ),
    )
    contribution = "each step has its stated epsilon and delta for these neighbours"

    epsilon: NotNegative
    delta: Annotated[float, partial(fraction, zero=True)] = 0.0
    sample_rate: Chance = 1.0
    steps: Steps = 1
    neighbours: StatedNeighbours = Adjacency.ADD_OR_REMOVE

    def _check_together(self) -> None:
        if self.epsilon == 0 == self.delta:
            raise ValueError("epsilon is 0 and delta is 0; such a step reveals nothing, so leave it out")
        if self.neighbours is Adjacency.REPLACE_ONE and self.sample_rate < 1:
            raise ValueError("neighbours is replace-one, for which no bound is derived here on batches")

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``."""
        return self.neighbours


class WholeDataEvent(Event):
    """Steps without known subsampling: every record takes part, and the bound is for the stated neighbours."""

    if TYPE_CHECKING:  # declared by every kind itself, as ``steps`` is

        @property
        def neighbours(self) -> Adjacency:
            """The adjacency for which the bound is stated."""

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (1.0,)

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``."""
        return self.neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConcentratedDp(WholeDataEvent):
    """Any mechanism whose Renyi divergence of each order a above 1 is at most ``xi`` + ``rho`` a, ``steps`` times.

    (xi, rho)-zCDP (Bun and Steinke 2016) for ``neighbours``; in nats.
    """

    tag = "zcdp"
    mechanism = "zcdp"
    options = (
        EventOption(name="rho", help="zcdp: rho of one step, in nats.", field="rho"),
        EventOption(name="xi", help="zcdp: xi of one step, in nats.  [default: 0]", field="xi"),
    )
    contribution = "each step is zero-concentrated differentially private as stated, for these neighbours"

    rho: Positive
    xi: NotNegative = 0.0
    steps: Steps = 1
    neighbours: StatedNeighbours = Adjacency.ADD_OR_REMOVE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialChoice(WholeDataEvent):
    """One of several candidates, chosen by the exponential mechanism, ``steps`` times.

    For ``neighbours``, the privacy loss lies in an interval of length ``epsilon``: the mechanism is
    ``epsilon``-bounded-range (Durfee and Rogers 2019; Dong, Durfee and Rogers 2020). That holds if probabilities are
    proportional to e^(``epsilon`` score / (2 Delta)), where one example changes a score by at most Delta.
    """

    tag = "exponential"
    mechanism = "exponential"
    options = (
        EventOption(
            name="range_epsilon",
            help="exponential: epsilon of one choice by the exponential mechanism, the range of its losses.",
            field="epsilon",
            within=LOG_ODDS,
        ),
    )
    contribution = "each step is an exponential mechanism of the stated epsilon for these neighbours"

    epsilon: Positive
    steps: Steps = 1
    neighbours: StatedNeighbours = Adjacency.ADD_OR_REMOVE


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprotectedRelease(WholeDataEvent):
    """A function of the data released without noise, ``steps`` times; it has no finite epsilon."""

    tag = "non-private"
    mechanism = "non-private"
    contribution = "a release without noise may show one example as it is"

    steps: Steps = 1
    neighbours: StatedNeighbours = Adjacency.ADD_OR_REMOVE


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfRuns(Event):
    """The best of a random number of runs of one mechanism, ``steps`` times: a private search.

    A run is ``run_steps`` Gaussian steps on Poisson batches; ``noise_multiplier`` is noise standard deviation / clip
    norm. The number of runs has mean ``mean_runs`` and a truncated negative binomial distribution of this ``shape``: 1
    is the geometric, 0 the logarithmic distribution. With ``shape`` None it is Poisson, so there may be no run. Only
    the best run is released (Papernot and Steinke 2022).
    """

    tag = "best-of-runs"
    mechanism = "search"
    options = (
        EventOption(
            name="expected_runs",
            help="search: mean of the random number of runs of which the best is released.",
            field="mean_runs",
            within=Range(low=1, high=1000),
        ),
        EventOption(
            name="runs_law",
            help="search: distribution of that number: geometric, logarithmic or poisson.  [default: geometric]",
            kind=str,
        ),
    )
    contribution = (
        "one example changes what noise is added to by the clip norm at most, and only the best of a secret, random "
        "number of runs is released"
    )

    noise_multiplier: Positive
    mean_runs: OneOrMore
    shape: NotNegativeIfGiven = 1.0
    sample_rate: Chance = 1.0
    run_steps: Steps = 1
    steps: Steps = 1

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: over many runs, a record is taken to participate with certainty."""
        return (1.0 if self.sample_rate else 0.0,)

    @property
    def batches_needed(self) -> Batches | None:
        """See ``Event``."""
        return Batches.POISSON if self.sample_rate < 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfLaplaceRuns(Event):
    """The best of a random number of runs with Laplace noise on the whole data, ``steps`` times.

    A run adds Laplace noise of ``scale`` (noise scale / sensitivity) to ``run_steps`` numbers. ``mean_runs`` and
    ``shape`` are as in ``BestOfRuns``.
    """

    tag = "best-of-laplace-runs"
    mechanism = "laplace-search"
    contribution = (
        "one example changes each number that noise is added to by the sensitivity at most, and only the best of a "
        "secret, random number of runs is released"
    )

    scale: Positive
    mean_runs: OneOrMore
    shape: NotNegativeIfGiven = 1.0
    run_steps: Steps = 1
    steps: Steps = 1

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (1.0,)
