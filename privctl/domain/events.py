"""Events: the steps of a mechanism that touch the data, as the accountants need them and nothing more.

Evolution contract: as for mechanisms, a released event keeps its tag and its fields' meanings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.checks import at_least, count, positive, probability


class Batches(StrEnum):
    """How a training step chooses its examples.

    ``POISSON`` takes every example with probability ``sample_rate``, independently. ``FIXED_SIZE`` draws the same
    number of examples each step, without replacement, afresh.

    ``SHUFFLED`` goes through the data in passes. The first step begins a pass; each pass takes an order of its own,
    drawn without looking at the data, and no batch reaches into the next pass. A pass has at least
    floor(1 / ``sample_rate``) steps: where the batches do not divide the data, what is left over may be dropped or
    make one more, smaller batch. An example is in at most one batch of a pass, so in at most
    ceil(``steps`` / floor(1 / ``sample_rate``)) in all; it may be in the last batch of one pass and the first of the
    next.
    """

    POISSON = "poisson"
    SHUFFLED = "shuffled"
    FIXED_SIZE = "fixed-size"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian:
    """Gaussian noise on a sum of clipped contributions of a batch, ``steps`` times.

    ``noise_multiplier`` is noise standard deviation / clip norm. With ``sample_rate`` 1 it is the Gaussian mechanism,
    composed ``steps`` times.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1
    batches: Batches = Batches.POISSON

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise:
    """Laplace noise on one number, ``steps`` times; ``scale`` is noise scale / sensitivity, so epsilon = 1 / scale."""

    scale: float
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse:
    """``bits`` bits of one Poisson batch, each kept with log-odds ``epsilon``, else flipped; ``steps`` times."""

    epsilon: float
    bits: int = 1
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        at_least("bits", self.bits, 1)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignBits:
    """Signs of directional derivatives of a batch gradient, published as they are (FERRET).

    Each of ``groups`` publishes with probability ``fire_probability`` a step, decided without looking at the data.
    """

    groups: int
    fire_probability: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        at_least("groups", self.groups, 1)
        probability("fire_probability", self.fire_probability)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretMixture:
    """Gaussian noise on a clipped sum to which each record of one secret belongs with its own probability (Hush).

    ``probabilities`` are those of the records that hold the secret; ``noise_multiplier`` is for one record's clip norm.
    """

    probabilities: tuple[float, ...]
    noise_multiplier: float
    steps: int = 1

    def __post_init__(self) -> None:
        for value in self.probabilities:
            probability("probabilities", value)
        if not self.probabilities:
            raise ValueError("probabilities is empty; a secret lies in at least one record")
        positive("noise_multiplier", self.noise_multiplier)
        count("steps", self.steps)


Event = SampledGaussian | LaplaceNoise | RandomizedResponse | SecretMixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything that touched the data, in any order: events of different rates and noise compose."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("events is empty; a ledger holds at least one")
