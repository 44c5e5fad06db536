"""The settings of a training run, frozen and named like their flags."""

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

    ``batch_size`` is the expected number of examples a step, and the normaliser of their summed gradients;
    ``sample_rate`` is batch_size / number of examples, ``batches`` how private batches are drawn. ``noise_multiplier``
    is noise standard deviation / ``clip_norm``, 0 where there is none; ``coefficients`` correlate it over as many steps
    (``BandedGaussian``), and are None where each step has noise of its own, or where ``matrix`` correlates it over all
    steps (``BufferedGaussian``). ``group`` is how many records of a user are examples that are protected together
    (``GroupGaussian``), None where each is by itself. ``largest_batch`` is how many examples of a larger draw are kept
    (``TruncatedGaussian``), None for all. ``search`` is how many such runs there are of which the best is released,
    None for this one alone. With ``adaptive``, ``clip_norm`` is that of the first step, and ``noise_multiplier`` that
    of each step's two releases together. ``public`` records' gradients are added to the released ones, None for none.
    ``micro_tokens`` and ``micro_examples`` bound what goes through the network at
    once, and ``clipping_passes`` are the backward passes that clip it; they change nothing but memory, time and
    rounding. Raises ValueError for settings out of range.
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
        """Noise standard deviation / clip norm of each step's sum of gradients."""
        if self.adaptive is None:
            return self.noise_multiplier
        return sum_noise_multiplier(self.noise_multiplier, self.adaptive.count_stddev)

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return round(self.batch_size / self.sample_rate)

    @property
    def bands(self) -> int:
        """Over how many steps noise is correlated; 1 where it is not."""
        return 1 if self.coefficients is None else len(self.coefficients)

    @property
    def most_runs(self) -> int:
        """How many runs there are at most, of which the best is released."""
        return 1 if self.search is None else self.search.most

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every example takes part once, on average."""
        return max(1, math.ceil(round(1 / self.sample_rate, 9)))

    def ends_epoch(self, updates: int) -> bool:
        """Whether the step that makes ``updates`` in all ends an epoch.

        Poisson batches (with noise) go on from one epoch to the next, so that epoch k ends with step ceil(k / rate);
        passes over the data begin anew.
        """
        rate = self.sample_rate if self.noise_multiplier else None
        return whole_epochs(updates, self.steps_per_epoch, rate) > whole_epochs(updates - 1, self.steps_per_epoch, rate)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of ``step``, counted from 0."""
        return self.learning_rate * share_at(step, self.steps, self.schedule, self.warmup_steps)


def whole_epochs(steps: int, epoch_steps: int, rate: float | None) -> int:
    """How many epochs ``steps`` have ended: passes of ``epoch_steps``, or by Poisson batches at sampling ``rate``.

    ``whole_epochs(334, 4, 0.3)`` is 100, and ``whole_epochs(334, 4, None)`` 83.
    """
    return steps // epoch_steps if rate is None else math.floor(round(steps * rate, 9))


def share_at(step: int, steps: int, schedule: Schedule, warmup_steps: int) -> float:
    """The share of the highest learning rate that ``step`` of ``steps`` has, counted from 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule is Schedule.CONSTANT:
        return 1.0
    gone = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 1 - gone if schedule is Schedule.LINEAR else 0.5 * (1 + math.cos(math.pi * gone))
