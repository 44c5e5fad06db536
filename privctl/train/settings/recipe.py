"""The settings of a training run, as a frozen dataclass whose fields are named like their flags."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.accounting.buffered import BufferedMatrix
from privctl.accounting.runs_law import NumberOfRuns
from privctl.domain.checks import at_least, fraction, positive, probability
from privctl.domain.events import Batches
from privctl.domain.mechanism import Optimizer
from privctl.domain.ranges import CLIP_NORM
from privctl.train.settings.adaptive_clipping import AdaptiveClipping, sum_noise_multiplier
from privctl.train.settings.choices import Schedule
from privctl.train.settings.public_mixing import PublicMixing


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """A training run's settings.

    ``batch_size`` is the expected number of examples per step, by which summed gradients are divided; ``sample_rate``
    is batch_size / number of examples, and ``batches`` how private batches are drawn. ``noise_multiplier`` is the
    noise's standard deviation / ``clip_norm``, 0 without noise. ``coefficients`` correlate the noise over as many steps
    (``BandedGaussian``); ``matrix`` correlates it over all steps (``BufferedGaussian``); without either it is
    independent. ``group`` is the largest number of records of a user, who is protected as a whole (``GroupGaussian``);
    None if each record is protected by itself. ``largest_batch`` is the number of examples to which larger draws are
    cut (``TruncatedGaussian``), None for no limit. ``search`` is the distribution of the number of runs of which the
    best is released, None for a single run. With ``adaptive``, ``clip_norm`` is that of the first step, and
    ``noise_multiplier`` that of each step's two releases together. ``public`` says how gradients of public records are
    added to the released ones. ``micro_tokens`` and ``micro_examples`` bound what passes through the network at once,
    and ``clipping_passes`` is the number of backward passes for clipping; these only affect memory, time and rounding.
    Raises ValueError for settings out of range.
    """

    method: str
    steps: int
    batch_size: float
    sample_rate: float
    learning_rate: float
    optimizer: Optimizer = Optimizer.ADAMW
    clip_norm: float = 1.0
    noise_multiplier: float = 0.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    micro_tokens: int = 16_384
    micro_examples: int = 64
    clipping_passes: int = 1
    bf16: bool = False
    batches: Batches = Batches.POISSON
    coefficients: tuple[float, ...] | None = None
    matrix: BufferedMatrix | None = None
    group: int | None = None
    largest_batch: int | None = None
    search: NumberOfRuns | None = None
    adaptive: AdaptiveClipping | None = None
    public: PublicMixing | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "micro_tokens", "micro_examples", "clipping_passes"):
            at_least(name, getattr(self, name), 1)
        for name in ("batch_size", "learning_rate"):
            positive(name, getattr(self, name))
        CLIP_NORM.require("clip_norm", self.clip_norm)
        for name in ("noise_multiplier", "weight_decay", "warmup_steps"):
            at_least(name, getattr(self, name), 0)
        for name in ("momentum", "beta1", "beta2"):
            fraction(name, getattr(self, name), zero=True)
        probability("sample_rate", self.sample_rate)
        if self.adaptive is not None:
            sum_noise_multiplier(self.noise_multiplier, self.adaptive.count_stddev)

    @property
    def sum_noise_multiplier(self) -> float:
        """The noise multiplier of each step's sum of gradients: standard deviation / clip norm."""
        if self.adaptive is None:
            return self.noise_multiplier
        return sum_noise_multiplier(self.noise_multiplier, self.adaptive.count_stddev)

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return round(self.batch_size / self.sample_rate)

    @property
    def bands(self) -> int:
        """The number of steps over which noise is correlated; 1 for independent noise."""
        return 1 if self.coefficients is None else len(self.coefficients)

    @property
    def most_runs(self) -> int:
        """The largest number of runs of which the best is released."""
        return 1 if self.search is None else self.search.most

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which every example takes part once on average."""
        return max(1, math.ceil(round(1 / self.sample_rate, 9)))

    def ends_epoch(self, updates: int) -> bool:
        """Whether an epoch ends with the step after which there are ``updates`` in all.

        With Poisson batches (with noise), epoch k ends with step ceil(k / rate). Without noise, each epoch is a pass
        over the data.
        """
        rate = self.sample_rate if self.noise_multiplier else None
        return whole_epochs(updates, self.steps_per_epoch, rate) > whole_epochs(updates - 1, self.steps_per_epoch, rate)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of ``step``, counted from 0."""
        return self.learning_rate * learning_rate_factor(step, self.steps, self.schedule, self.warmup_steps)


def whole_epochs(steps: int, epoch_steps: int, rate: float | None) -> int:
    """The number of epochs completed after ``steps``, of ``epoch_steps`` each, or of Poisson batches at ``rate``.

    ``whole_epochs(334, 4, 0.3)`` is 100, and ``whole_epochs(334, 4, None)`` 83.
    """
    return steps // epoch_steps if rate is None else math.floor(round(steps * rate, 9))


def learning_rate_factor(step: int, steps: int, schedule: Schedule, warmup_steps: int) -> float:
    """The learning rate of ``step``, counted from 0, as a fraction of the peak learning rate."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule is Schedule.CONSTANT:
        return 1.0
    gone = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 1 - gone if schedule is Schedule.LINEAR else 0.5 * (1 + math.cos(math.pi * gone))
