"""Events: the steps of a mechanism that touch the data, with the parameters that accounting needs.

An event says what follows from its fields. Its privacy cost is computed in ``privctl.accounting.events`` and, a second
time, in ``verify.events``. ``EVENTS`` is the table of all kinds.

Compatibility: once released, an event keeps its tag and the meaning of its fields.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from privctl.domain.banded import BandedGaussian
from privctl.domain.discrete_events import DiscreteGaussianNoise, DiscreteLaplaceNoise, ManyWayResponse
from privctl.domain.event import Batches, Event, EventOption, SampledEvent
from privctl.domain.event_fields import Chance, Chances, NotNegatives, Positive, Several, Steps
from privctl.domain.fixed_order import BufferedGaussian, TreeGaussian
from privctl.domain.gaussian_batches import GroupGaussian, RedrawnGaussian, ReplacedGaussian, TruncatedGaussian
from privctl.domain.guarantee import Adjacency, PrivacyUnit
from privctl.domain.ranges import CHANCE, COUNT, FRACTION, LOG_ODDS
from privctl.domain.stated_events import (
    BestOfLaplaceRuns,
    BestOfRuns,
    EpsilonDeltaDp,
    ExponentialChoice,
    UnprotectedRelease,
    ZeroConcentratedDp,
)

__all__ = [
    "EVENTS",
    "SAMPLED_BATCHES",
    "BandedGaussian",
    "Batches",
    "BestOfLaplaceRuns",
    "BestOfRuns",
    "BufferedGaussian",
    "DiscreteGaussianNoise",
    "DiscreteLaplaceNoise",
    "EpsilonDeltaDp",
    "Event",
    "EventOption",
    "ExponentialChoice",
    "GroupGaussian",
    "LaplaceNoise",
    "Ledger",
    "ManyWayResponse",
    "MixtureOfGaussians",
    "RandomizedResponse",
    "RedrawnGaussian",
    "ReplacedGaussian",
    "SampledGaussian",
    "SecretMixture",
    "SignBits",
    "TreeGaussian",
    "TruncatedGaussian",
    "UnprotectedRelease",
    "ZeroConcentratedDp",
]  # fmt: skip


#: Batches that belong to one kind of event only.
_OF_ONE_KIND = (Batches.CYCLIC_POISSON, Batches.TRUNCATED_POISSON, Batches.FIXED_ORDER, Batches.WITH_REPLACEMENT)
#: Batches of steps with independent noise.
SAMPLED_BATCHES = tuple(kind for kind in Batches if kind not in _OF_ONE_KIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian(SampledEvent):
    """Gaussian noise on a sum of clipped contributions of a batch, ``steps`` times.

    ``noise_multiplier`` is noise standard deviation / clip norm. With ``sample_rate`` 1 this is ``steps`` compositions
    of the Gaussian mechanism.
    """

    tag = "sampled-gaussian"
    mechanism = "gaussian"

    noise_multiplier: Positive
    sample_rate: Chance = 1.0
    steps: Steps = 1
    batches: Batches = Batches.POISSON

    def _check_together(self) -> None:
        if self.batches not in SAMPLED_BATCHES:
            raise ValueError(f"batches is {self.batches}, which goes with another kind of event only")
        if self.batches is Batches.BALLS_AND_BINS and self.sample_rate != 1 / self.steps_per_pass:
            raise ValueError(
                f"sample_rate is {self.sample_rate:g}; with balls-and-bins batches it must be 1 over a whole number of "
                "steps, such as 0.01"
            )

    @property
    def steps_per_pass(self) -> int:
        """The number of steps closest to 1 / ``sample_rate``; exact for balls-and-bins batches."""
        return round(1 / self.sample_rate) if self.sample_rate >= 2**-52 else 1

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``: a record is replaced, its contribution zeroed in its one batch per pass, or it is removed."""
        if self.batches is Batches.FIXED_SIZE:
            return Adjacency.REPLACE_ONE
        return Adjacency.ZERO_OUT if self.batches is Batches.SHUFFLED else Adjacency.ADD_OR_REMOVE

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        if self.batches is not Batches.FIXED_SIZE:
            return ""
        return "fixed-size batches protect against replacing a record and compose only with one another"

    @property
    def batches_needed(self) -> Batches | None:
        """See ``Event``: passes must be real passes even if a batch holds every record."""
        return self.batches if self.sample_rate < 1 or self.batches is Batches.SHUFFLED else None

    @property
    def noise_to_sensitivity(self) -> float | None:
        """See ``Event``."""
        return self.noise_multiplier

    @property
    def caption(self) -> str:
        """See ``Event``."""
        return (
            f"{self.steps:,} step{'s' * (self.steps != 1)}, {self.batches} batches at rate {self.sample_rate:.6g}, "
            f"noise multiplier {self.noise_multiplier:.6g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise(SampledEvent):
    """Laplace noise on one number, ``steps`` times; ``scale`` is noise scale / sensitivity, so epsilon = 1 / scale."""

    tag = "laplace"
    mechanism = "laplace"
    options = (EventOption(name="scale", help="laplace: noise scale / sensitivity.", field="scale"),)

    scale: Positive
    sample_rate: Chance = 1.0
    steps: Steps = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse(SampledEvent):
    """``bits`` bits of a Poisson batch, each kept with log-odds ``epsilon`` and flipped otherwise; ``steps`` times."""

    tag = "randomized-response"
    mechanism = "randomized-response"
    options = (
        EventOption(
            name="bit_epsilon",
            help="randomized-response: log-odds that a bit is true.",
            field="epsilon",
            within=LOG_ODDS,
        ),
        EventOption(
            name="bits",
            help="randomized-response: bits per step, at most a million.  [default: 1]",
            field="bits",
            kind=int,
            within=COUNT,
        ),
    )

    epsilon: Positive
    bits: Several = 1
    sample_rate: Chance = 1.0
    steps: Steps = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignBits(SampledEvent):
    """Signs of directional derivatives of a batch gradient, published as they are (FERRET).

    In each step, each of ``groups`` publishes with probability ``fire_probability``, independently of the data.
    """

    tag = "sign-bits"
    mechanism = "ferret"
    options = (
        EventOption(name="groups", help="ferret: groups of tensors.", field="groups", kind=int, within=COUNT),
        EventOption(
            name="fire_probability",
            help="ferret: chance that a group publishes in a step.",
            field="fire_probability",
            within=CHANCE,
        ),
    )
    composes = False

    groups: Several
    fire_probability: Chance
    sample_rate: Chance
    steps: Steps

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``."""
        return Adjacency.REPLACE_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfGaussians(Event):
    """Gaussian noise on a number that one record changes by a random amount, ``steps`` times; in ledgers only.

    The amount is ``sensitivities[i]`` with probability ``probabilities[i]``; ``noise_stddev`` is the standard deviation
    of the noise, in the same unit (Choquette-Choo, Ganesh, Steinke and Thakurta 2023).
    """

    tag = "gaussian-mixture"
    mechanism = "gaussian-mixture"
    contribution = "one example changes what noise is added to by a random amount, of the stated law at most"

    noise_stddev: Positive
    sensitivities: NotNegatives
    probabilities: Chances
    sample_rate: Chance = 1.0
    steps: Steps = 1

    def _check_together(self) -> None:
        if len(self.sensitivities) != len(self.probabilities) or not self.probabilities:
            raise ValueError("probabilities and sensitivities must have the same length, at least 1")
        if abs(math.fsum(self.probabilities) - 1) > 1e-9:
            raise ValueError(f"probabilities add up to {math.fsum(self.probabilities):.12g}; they must add up to 1")

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: 0 if no sensitivity is above 0, as the record then changes nothing."""
        moved = math.fsum(
            p for p, sensitivity in zip(self.probabilities, self.sensitivities, strict=True) if sensitivity > 0
        )
        return (self.sample_rate if moved else 0.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretMixture(Event):
    """Gaussian noise on a clipped sum to which each record of one secret belongs with its own probability (Hush).

    ``probabilities`` are the sampling rates of the records that hold the secret; ``noise_multiplier`` is noise standard
    deviation / clip norm of one record.
    """

    tag = "secret-mixture"
    mechanism = "secret"
    options = (
        EventOption(
            name="record", help="secret: sampling probability of a record, P or PxCOUNT.", kind=str, repeatable=True
        ),
        EventOption(
            name="posterior", help="secret: largest probability of a correct guess; needs one --prior.", within=FRACTION
        ),
    )
    unit = PrivacyUnit.SECRET

    probabilities: Chances
    noise_multiplier: Positive
    steps: Steps = 1

    def _check_together(self) -> None:
        if not self.probabilities:
            raise ValueError("probabilities is empty; a secret lies in at least one record")

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return self.probabilities

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``: the contributions of all its records zeroed."""
        return Adjacency.ZERO_OUT

    @property
    def composes_with(self) -> Hashable:
        """See ``Event``: events are about the same secret only if its records are the same."""
        return self.probabilities

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        return "events of one secret, in the same records, compose only with each other"


#: Tag -> kind of event, in the order in which they are listed to users.
EVENTS: dict[str, type[Event]] = {
    kind.tag: kind
    for kind in (
        SampledGaussian,
        BandedGaussian,
        BufferedGaussian,
        TreeGaussian,
        LaplaceNoise,
        DiscreteLaplaceNoise,
        DiscreteGaussianNoise,
        RandomizedResponse,
        ManyWayResponse,
        MixtureOfGaussians,
        GroupGaussian,
        ReplacedGaussian,
        TruncatedGaussian,
        RedrawnGaussian,
        EpsilonDeltaDp,
        ZeroConcentratedDp,
        ExponentialChoice,
        UnprotectedRelease,
        BestOfRuns,
        BestOfLaplaceRuns,
        SignBits,
        SecretMixture,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything that touched the data, in any order; events with different rates and noise compose."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("events is empty; a ledger holds at least one")
        for event in self.events:
            if not event.composes:
                raise ValueError(f"events holds {event.tag}, which does not compose with others")

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency for which its bounds hold; raises ValueError if no single one fits all events.

        If some events use add-or-remove and others zero-out, zero-out is used for all, which with Poisson batches is
        the same as removal.
        """
        if len({event.composes_with for event in self.events}) > 1:
            raise ValueError(min(filter(None, (event.composes_only for event in self.events))))
        adjacencies = {event.adjacency for event in self.events}
        for event in self.events:
            if Adjacency.ZERO_OUT in adjacencies and not event.holds_zeroed:
                raise ValueError(
                    f"events holds {event.tag}, whose bound is for a record removed, among events whose bounds are for "
                    "one zeroed; they do not compose"
                )
        return Adjacency.ZERO_OUT if Adjacency.ZERO_OUT in adjacencies else adjacencies.pop()

    @property
    def unit(self) -> PrivacyUnit:
        """The unit of privacy."""
        return PrivacyUnit.SECRET if any(e.unit is PrivacyUnit.SECRET for e in self.events) else PrivacyUnit.EXAMPLE
