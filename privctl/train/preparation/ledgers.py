"""The ledger of a run's private steps, from the settings that the accounting depends on."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.accounting.buffered import BufferedMatrix, buffered_event
from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.runs_law import NumberOfRuns
from privctl.domain.events import (
    BandedGaussian,
    Batches,
    BestOfRuns,
    Event,
    GroupGaussian,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.secrets.protection import Protection
from privctl.train.settings.recipe import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """Everything but the noise multiplier that the privacy cost of steps depends on; see ``TrainingSettings``."""

    examples: int
    sample_rate: float
    steps: int
    batches: Batches = Batches.POISSON
    coefficients: tuple[float, ...] | None = None
    matrix: BufferedMatrix | None = None
    group: int | None = None
    search: NumberOfRuns | None = None
    largest_batch: int | None = None

    def ledger(self, noise: float, measured: SampledGaussian | None = None) -> Ledger:
        """The ledger of the steps with noise multiplier ``noise`` and of the side releases ``measured``."""
        event = self._event(noise)
        return Ledger(events=(event,) if measured is None else (event, measured))

    def _event(self, noise: float) -> Event:
        rate, steps = self.sample_rate, self.steps
        if self.search is not None:
            law = self.search
            return BestOfRuns(
                noise_multiplier=noise, mean_runs=law.mean, shape=law.shape, sample_rate=rate, run_steps=steps
            )
        if self.coefficients is not None:
            return BandedGaussian(noise_multiplier=noise, coefficients=self.coefficients, sample_rate=rate, steps=steps)
        if self.matrix is not None:
            return buffered_event(self.matrix, noise, rate, steps)
        if self.group is not None:
            return GroupGaussian(noise_multiplier=noise, group_size=self.group, sample_rate=rate, steps=steps)
        if self.largest_batch is not None:
            return TruncatedGaussian(
                noise_multiplier=noise,
                largest_batch=self.largest_batch,
                examples=self.examples,
                sample_rate=rate,
                steps=steps,
            )
        return SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=self.batches)


def ledger_of(
    recipe: TrainingSettings,
    spent: int,
    plan: Protection | None = None,
    measured: SampledGaussian | None = None,
) -> Ledger:
    """The ledger of ``spent`` private steps and of the side releases ``measured``, for any one record.

    If records have probabilities of their own, the largest is used for all: drawing a record more often never lowers
    its privacy loss.
    """
    law = StepLaw(
        examples=recipe.examples,
        sample_rate=recipe.sample_rate if plan is None else plan.largest_probability,
        steps=spent,
        batches=recipe.batches,
        coefficients=recipe.coefficients,
        matrix=recipe.matrix,
        group=recipe.group,
        search=recipe.search,
        largest_batch=recipe.largest_batch,
    )
    return law.ledger(recipe.noise_multiplier, measured)


def price_of_group(recipe: TrainingSettings, delta: float | None) -> str:
    """The noise that clipping each record of a user by itself takes, compared with sampling users; "" without a group.

    Both have the same sampling rate: as one example, a user would be drawn as often as a record is.
    """
    if recipe.group is None or delta is None:
        return ""
    epsilon, alone = _poisson_baseline(recipe, delta)
    return (
        f"with up to {recipe.group} records of a user, each clipped by itself, epsilon {epsilon:.3g} takes a noise "
        f"multiplier of {recipe.noise_multiplier:.4g}; drawing users and using "
        f"one record of each, without --max-records-per-user, takes {alone:.4g} at the same sampling rate"
    )


def price_of_largest_batch(recipe: TrainingSettings, delta: float | None) -> str:
    """How often batches exceed ``largest_batch``, and the noise that the limit takes; "" without one."""
    if recipe.largest_batch is None or delta is None:
        return ""
    from scipy.special import bdtrc

    epsilon, alone = _poisson_baseline(recipe, delta)
    cut = float(bdtrc(min(recipe.largest_batch, recipe.examples), recipe.examples, recipe.sample_rate))
    return (
        f"with batches of at most {recipe.largest_batch} examples, which {100 * cut:.2g} % of the draws exceed, "
        f"epsilon {epsilon:.3g} takes a noise multiplier of {recipe.noise_multiplier:.4g}; without --largest-batch it "
        f"takes {alone:.4g}"
    )


def _poisson_baseline(recipe: TrainingSettings, delta: float) -> tuple[float, float]:
    """The run's epsilon, and the noise multiplier of record-level Poisson sampling at that epsilon."""
    epsilon = epsilon_bound(ledger_of(recipe, recipe.steps), delta)
    plain = StepLaw(examples=recipe.examples, sample_rate=recipe.sample_rate, steps=recipe.steps)
    return epsilon, noise_multiplier_for(epsilon, delta, plain.ledger)
