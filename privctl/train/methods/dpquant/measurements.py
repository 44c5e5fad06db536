"""The number of DPQuant's private measurements, and their privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.accounting.ledger import epsilon_bound
from privctl.domain.errors import CommandError
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.train.methods.dpquant.settings import DpquantSettings, Sensitivity
from privctl.train.settings.recipe import whole_epochs
from privctl.train.settings.request import RetrainRequest

#: A measurement uses this many examples, or this fraction of a batch if that is more. With n layers it takes n + 1
#: forward passes of them; a step takes about three of the whole batch.
_LEAST_EXAMPLES, _PART_OF_BATCH = 16, 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """``epochs`` epochs with ``repetitions`` measurements each; ``noise_multiplier`` None is that of the training.

    With the same noise and a lower sampling rate, a release costs less than a step.
    """

    sample_rate: float
    size: float
    epochs: int
    every: int
    repetitions: int
    clip_norm: float
    noise_multiplier: float | None = None

    @property
    def releases(self) -> int:
        """The number of releases in the whole run."""
        return self.epochs * self.repetitions

    def noise(self, training: float) -> float:
        """The noise multiplier of measurements if the training's is ``training``."""
        return training if self.noise_multiplier is None else self.noise_multiplier

    def event(self, training: float, releases: int | None = None) -> SampledGaussian | None:
        """The event of ``releases`` (all if None); None for no release."""
        count = self.releases if releases is None else releases
        if not count:
            return None
        return SampledGaussian(
            noise_multiplier=self.noise(training),
            sample_rate=self.sample_rate,
            steps=count,
            batches=Batches.POISSON,
        )

    def check_alone(self, epsilon: float, delta: float) -> None:
        """Raise CommandError if the measurements alone exceed the budget."""
        event = None if self.noise_multiplier is None else self.event(self.noise_multiplier)
        if event is None:
            return
        alone = epsilon_bound(Ledger(events=(event,)), delta)
        if alone >= epsilon:
            raise CommandError(
                f"{self.releases} measurements with noise multiplier {self.noise_multiplier:g} take an epsilon of "
                f"{alone:.4g} by themselves, and --epsilon is {epsilon:g}; raise --measure-noise or --measure-every"
            )


def measurements_of(request: RetrainRequest, examples: int, steps: int, rate: float) -> Measurements | None:
    """The private measurements of a run of ``steps`` at sampling rate ``rate``; None if it makes none."""
    settings = request.settings_as(DpquantSettings)
    if settings.measured is not Sensitivity.PRIVATE:
        return None
    size = max(_LEAST_EXAMPLES, rate * examples * _PART_OF_BATCH)
    measurement_rate = min(rate, size / examples) if settings.rate is None else settings.rate
    epochs = 1 + whole_epochs(steps - 1, 1, rate)
    return Measurements(
        sample_rate=measurement_rate,
        size=measurement_rate * examples,
        epochs=math.ceil(epochs / settings.every),
        every=settings.every,
        repetitions=settings.repetitions,
        clip_norm=settings.clip,
        noise_multiplier=settings.noise,
    )
