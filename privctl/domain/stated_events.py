"""Events of which only a guarantee or Renyi divergences are known, not the law of their loss."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.checks import at_least, count, fraction, positive, probability
from privctl.domain.event import Batches, Event, EventOption
from privctl.domain.ranges import FRACTION, LOG_ODDS, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaDp(Event):
    """Any mechanism that is (``epsilon``, ``delta``)-differentially private, ``steps`` times."""

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
    contribution = "each step has its stated epsilon and delta for adding or removing one example"

    epsilon: float
    delta: float = 0.0
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        fraction("delta", self.delta, zero=True)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (self.sample_rate,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConcentratedDp(Event):
    """Any mechanism whose Renyi divergence of each order a above 1 is ``xi`` + ``rho`` a at most, ``steps`` times.

    (xi, rho)-zCDP (Bun and Steinke 2016); in nats.
    """

    tag = "zcdp"
    mechanism = "zcdp"
    options = (
        EventOption(name="rho", help="zcdp: rho of one step, in nats.", field="rho"),
        EventOption(name="xi", help="zcdp: xi of one step, in nats.  [default: 0]", field="xi"),
    )
    contribution = "each step is zero-concentrated differentially private as stated, for adding or removing one example"

    rho: float
    xi: float = 0.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("rho", self.rho)
        at_least("xi", self.xi, 0)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: nothing is known of how batches are drawn."""
        return (1.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfRuns(Event):
    """The best of a random number of runs of one mechanism, ``steps`` times: a private search.

    A run is ``run_steps`` Gaussians on Poisson batches, with noise standard deviation / clip norm ``noise_multiplier``.
    The number of runs has the mean ``mean_runs`` and a truncated negative binomial law of this ``shape``: 1 is the
    geometric, 0 the logarithmic law; or, without a shape, a Poisson law, where there may be no run. Nothing but the
    best run is released (Papernot and Steinke 2022).
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
            help="search: law of that number: geometric, logarithmic or poisson.  [default: geometric]",
            kind=str,
        ),
    )
    contribution = (
        "one example changes what noise is added to by the clip norm at most, and only the best of a secret, random "
        "number of runs is released"
    )

    noise_multiplier: float
    mean_runs: float
    shape: float | None = 1.0
    sample_rate: float = 1.0
    run_steps: int = 1
    steps: int = 1

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        at_least("mean_runs", self.mean_runs, 1)
        if self.shape is not None:
            at_least("shape", self.shape, 0)
        probability("sample_rate", self.sample_rate)
        count("run_steps", self.run_steps)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: among many runs, as if a record took part for sure."""
        return (1.0 if self.sample_rate else 0.0,)

    @property
    def batches_needed(self) -> Batches | None:
        """See ``Event``."""
        return Batches.POISSON if self.sample_rate < 1 else None
