"""Four ways to publish the derivatives of a batch, from bare signs to releases with a guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from privctl.domain.checks import positive
from privctl.randomness import NoiseSource
from privctl.train.methods.ferret.settings import MOST_BIT_EPSILON, Publish


class Publisher(Protocol):
    """Turns a batch's sums of derivatives (fired,) float64 into published amounts (fired,) float64."""

    @property
    def clip_norm(self) -> float | None:
        """The L2 norm to which each example's vector of derivatives must be clipped; None if only sums are needed."""
        ...

    def publish(self, step: int, sums: Tensor) -> Tensor:
        """The amounts; called once for every ``step``."""
        ...


def signs(values: Tensor) -> Tensor:
    """The signs (n,), 1 or -1; the sign of 0 is 1, so that one bit suffices."""
    return torch.where(values >= 0, 1.0, -1.0).to(torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """The paper's release: the sign of the batch's derivative, which clipping the batch gradient would not change."""

    @property
    def clip_norm(self) -> float | None:
        """See ``Publisher``."""
        return None

    def publish(self, step: int, sums: Tensor) -> Tensor:
        """See ``Publisher``."""
        return signs(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class DitheredSigns:
    """The sign of sum / ``batch_size`` clipped to +-``bound``, plus N(0, (``noise_multiplier`` bound)^2).

    The paper clips the norm of the batch's gradient, which bounds its derivatives. Here the derivatives are clipped
    themselves, so no example changes one by more than twice the bound.
    """

    noise_multiplier: float
    bound: float
    batch_size: float
    source: NoiseSource

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "bound", "batch_size"):
            positive(name, getattr(self, name))

    @property
    def clip_norm(self) -> float | None:
        """See ``Publisher``."""
        return None

    def publish(self, step: int, sums: Tensor) -> Tensor:
        """See ``Publisher``."""
        bounded = (sums / self.batch_size).clamp(-self.bound, self.bound)
        return signs(released(self.source, step, bounded, self.noise_multiplier * self.bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySums:
    """Sums of vectors clipped to ``clip_norm``, plus N(0, (``noise_multiplier`` clip_norm)^2) on each entry.

    That is one sampled Gaussian mechanism per step, however many groups fire (docs/papers.md#sound-releases). Published
    values are divided by ``batch_size``, the expected batch size.
    """

    noise_multiplier: float
    clip_norm: float
    batch_size: float
    shown: Publish
    source: NoiseSource

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "clip_norm", "batch_size"):
            positive(name, getattr(self, name))

    def publish(self, step: int, sums: Tensor) -> Tensor:
        """See ``Publisher``."""
        noisy = released(self.source, step, sums, self.noise_multiplier * self.clip_norm)
        if self.shown is Publish.SIGN:
            return signs(noisy)
        return (noisy / self.batch_size).float().double()  # as stored in the stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """Randomized response: signs, each flipped with probability 1 / (1 + e^``bit_epsilon``).

    The probability is rounded up to a multiple of 2^-64, so the log-odds of a true sign never exceed ``bit_epsilon``.
    Raises ValueError for log-odds above ``MOST_BIT_EPSILON``, which 64 random bits cannot express.
    """

    bit_epsilon: float
    source: NoiseSource

    def __post_init__(self) -> None:
        flips_of(self.bit_epsilon)

    @property
    def clip_norm(self) -> float | None:
        """See ``Publisher``."""
        return None

    def publish(self, step: int, sums: Tensor) -> Tensor:
        """See ``Publisher``."""
        # A word below the threshold flips the sign, with probability exactly threshold / 2^64.
        words = self.source.words(step, 0, len(sums))
        flipped = words < np.uint64(flips_of(self.bit_epsilon))
        return torch.where(torch.from_numpy(flipped), -signs(sums), signs(sums))


def flips_of(bit_epsilon: float) -> int:
    """The number of the 2^64 values of a random word that flip a sign: 2^64 / (1 + e^``bit_epsilon``), rounded up.

    Raises ValueError for log-odds that are not positive, or above ``MOST_BIT_EPSILON``.
    Example: 1 gives 4961093570831980854.
    """
    positive("bit_epsilon", bit_epsilon)
    if bit_epsilon > MOST_BIT_EPSILON:
        raise ValueError(
            f"bit_epsilon is {bit_epsilon:g}; flips are drawn with 64 random bits, which express log-odds up to "
            f"{MOST_BIT_EPSILON:g}"
        )
    digits = Context(prec=60)
    odds = digits.exp(Decimal(bit_epsilon))
    # Decimal's exp is correctly rounded; the last factor far exceeds all rounding errors.
    share = digits.divide(Decimal(2**64), digits.add(Decimal(1), odds))
    return math.ceil(digits.multiply(share, Decimal(1) + Decimal(10) ** -50))


def released(source: NoiseSource, step: int, sums: Tensor, stddev: float) -> Tensor:
    """``sums`` (k,) float64 plus N(0, stddev^2) noise, rounded onto the noise's grid, so that low bits leak nothing."""
    noised = sums.clone()
    source.release(step, 0, noised.numpy(), stddev)
    return noised
