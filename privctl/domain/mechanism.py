"""Mechanisms: the public parameters of what touched the data, as far as accounting needs them.

Compatibility: a released mechanism keeps its tag and the meaning of its fields; a new field is optional.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.checks import at_least, count, fraction, positive
from privctl.domain.events import Ledger, SignBits


class Optimizer(StrEnum):
    """Optimizers for which a sensitivity bound is derived."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"


class Regime(StrEnum):
    """What is known about the training loss.

    docs/papers.md#sensitivity-of-trained-weights gives the sensitivity that follows from each.
    """

    CONVEX = "convex"
    STRONGLY_CONVEX = "strongly-convex"
    SMOOTH = "smooth"
    NONCONVEX = "nonconvex"


class Calibration(StrEnum):
    """How the noise standard deviation for already trained weights is chosen."""

    DP_WEIGHTS = "dp-weights"
    GAUSSIAN = "gaussian"
    GIVEN = "given"


class Formula(StrEnum):
    """The two readings of the published DP-Weights formula."""

    ALGORITHM_2 = "algorithm2"
    EQUATION_1 = "eq1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedTraining:
    """Mini-batch training with per-example clipping at a constant learning rate.

    Each example is visited once per epoch in an order that does not depend on the data, and a batch's sum of clipped
    gradients is divided by the fixed ``batch_size``.

    ``epochs`` E, ``dataset_size`` N and ``batch_size`` B are counts; ``clip_norm`` C is an L2 norm; ``steps`` T
    defaults to ``E * ceil(N / B)``. ``momentum`` is the heavy-ball factor; ``beta1`` and ``beta2`` are Adam's.
    ``weight_decay`` is decoupled (per step the weights are multiplied by ``1 - learning_rate * weight_decay``).
    ``smoothness`` and ``strong_convexity`` are constants of the loss, None if unknown.
    """

    epochs: int
    learning_rate: float
    clip_norm: float
    dataset_size: int
    batch_size: int
    optimizer: Optimizer = Optimizer.SGD
    steps: int | None = None
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    smoothness: float | None = None
    strong_convexity: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "dataset_size", "batch_size"):
            count(name, getattr(self, name))
        for name in ("learning_rate", "clip_norm"):
            positive(name, getattr(self, name))
        for name in ("smoothness", "strong_convexity"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        at_least("weight_decay", self.weight_decay, 0)
        for name in ("momentum", "beta1", "beta2"):
            fraction(name, getattr(self, name), zero=True)
        self._check_agreement()

    def _check_agreement(self) -> None:
        """Raise ValueError for fields that contradict each other."""
        if self.batch_size > self.dataset_size:
            raise ValueError(f"batch_size {self.batch_size} exceeds dataset_size {self.dataset_size}")
        if (self.optimizer is Optimizer.MOMENTUM) != (self.momentum > 0):
            raise ValueError(
                f"momentum {self.momentum} contradicts optimizer {self.optimizer}; "
                "a momentum above 0 goes with optimizer momentum, and only with it"
            )
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"weight_decay {self.weight_decay} times learning_rate {self.learning_rate} must be below 1"
            )
        if self.smoothness and self.strong_convexity and self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity {self.strong_convexity} exceeds smoothness {self.smoothness}; no loss has both"
            )
        low, high = (self.epochs * f(self.dataset_size / self.batch_size) for f in (math.floor, math.ceil))
        if self.steps is not None and not low <= self.steps <= high:
            raise ValueError(
                f"steps {self.steps} contradicts {self.epochs} epochs of {self.dataset_size} examples in batches of "
                f"{self.batch_size}, which make {high} steps"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one epoch, including a short last batch."""
        return math.ceil(self.dataset_size / self.batch_size)

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps T."""
        return self.epochs * self.steps_per_epoch if self.steps is None else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNoise:
    """Independent Gaussian noise added once to finished weights (DP-Weights).

    ``noise_stddev`` is in the weights' own units. ``dimension`` counts the weights that received noise, tied ones once.
    ``candidate_stddevs`` lists every standard deviation released by the run: candidates are nested, each the next less
    noisy one plus fresh noise, so all of them together reveal no more than the least noisy one. ``grid`` is the spacing
    of the grid to which the noisy weights were rounded, in the weights' units; None if they were not rounded.
    ``training`` is None if the standard deviation was given without facts about the training: then nothing follows.
    """

    training: ClippedTraining | None
    noise_stddev: float
    dimension: int
    calibration: Calibration
    formula: Formula | None = None
    regime: Regime | None = None
    candidate_stddevs: tuple[float, ...] = ()
    noise_source: str = ""
    grid: float | None = None

    def __post_init__(self) -> None:
        positive("noise_stddev", self.noise_stddev)
        if self.grid is not None:
            positive("grid", self.grid)
        at_least("dimension", self.dimension, 0)


Mechanism = ClippedTraining | WeightNoise | Ledger | SignBits
