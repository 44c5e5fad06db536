"""The settings of a training that decide how weights move, read from a report's parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privctl.domain.mechanism import Optimizer
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import ParametersError
from verify.checkpoint_noise.values import Floats
from verify.events.buffered_gaussian import column
from verify.methods.expected import StatedTraining
from verify.stated import method_of, training_of

#: The most updates that are simulated one by one.
MOST_UPDATES = 1_000_000
#: The same, if the noise of each update depends on all earlier noise.
MOST_CORRELATED = 20_000
_SCHEDULES = ("constant", "linear", "cosine")
#: A number larger than any setting of a run, whose square does not overflow.
_LARGEST = 1e100


class UncheckableError(Exception):
    """Something cannot be checked; the message says why."""


class UnstatedError(UncheckableError):
    """The report does not state a setting that every training has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedIn:
    """``count`` orthogonal canary gradients, each included by a fair coin.

    An included one adds at most ``most`` clip norms in every ``apart``-th step, with probability ``share``.
    """

    count: int
    most: float
    share: float
    apart: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """How one training moved its weights.

    ``updates`` were made out of the ``planned`` steps of the learning rate schedule. ``noise_multiplier`` is 0 if no
    noise was added. ``correlation`` is the column of the matrix C for correlated noise w with C w = z, and (1,) for
    independent noise. ``batch_size`` is the expected batch size, by which the sum of gradients is divided.
    ``clip_norm`` is None if gradients were not clipped. ``clip_norms`` holds those of each update if they change; then
    ``noise_multiplier`` is the noise on the sum alone, and ``joint_multiplier`` that of everything a step releases.
    ``gaps`` is whether unknown steps were begun and lost, along with noise that later steps would have cancelled.
    ``canaries`` are the canary gradients mixed in, None if there are none.
    """

    method: str
    updates: int
    planned: int
    learning_rate: float
    schedule: str
    warmup: int
    optimizer: Optimizer
    batch_size: float
    examples: int
    noise_multiplier: float
    clip_norm: float | None
    momentum: float
    beta1: float
    beta2: float
    weight_decay: float
    correlation: tuple[float, ...] = (1.0,)
    gaps: bool = False
    clip_norms: tuple[float, ...] | None = None
    joint_multiplier: float | None = None
    canaries: MixedIn | None = None

    @property
    def rates(self) -> Floats:
        """The learning rate of each update: a linear warm-up, then constant, linear, or half a cosine."""
        steps = np.arange(self.updates, dtype=np.float64)
        progress = (steps - self.warmup) / max(1, self.planned - self.warmup)
        after = {
            "constant": np.ones(self.updates),
            "linear": 1 - progress,
            "cosine": (1 + np.cos(math.pi * progress)) / 2,
        }
        share = np.where(steps < self.warmup, (steps + 1) / max(1, self.warmup), after[self.schedule])
        return np.asarray(self.learning_rate * share, dtype=np.float64)

    @property
    def adaptive(self) -> bool:
        """Whether a second moment divides the updates."""
        return self.optimizer in (Optimizer.ADAM, Optimizer.ADAMW)

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of the noise on one entry of a step's mean gradient."""
        return self.noise_multiplier * (self.clip_norm or 0.0) / self.batch_size

    @property
    def norms(self) -> Floats:
        """The clip norm of each update."""
        if self.clip_norms is None:
            return np.full(self.updates, self.clip_norm or 0.0)
        return np.array(self.clip_norms[: self.updates])

    @property
    def noise_stddevs(self) -> Floats:
        """``noise_stddev`` of each update."""
        return np.asarray(self.noise_multiplier * self.norms / self.batch_size)

    @property
    def grids(self) -> Floats:
        """The grid spacing of a noised gradient: the largest power of two up to 1/32 of the noise."""
        return np.asarray(np.ldexp(1.0, np.frexp(self.noise_stddevs)[1] - 6), dtype=np.float64)

    @property
    def sample_rate(self) -> float:
        """The probability that an example is in a batch, averaged over the examples."""
        return min(1.0, self.batch_size / self.examples)


def settings_of(report: PrivacyReport) -> TrainingFacts:
    """The settings of a ``retrain`` report. Raises UncheckableError if they describe no possible training."""
    parameters, method = facts_of(report), method_of(report)
    if method is None:
        raise UncheckableError(f"the method {parameters.method!r} is not known")
    updates, planned = _whole(parameters.updates, "updates"), _whole(parameters.steps, "steps")
    if not 1 <= updates <= min(planned, MOST_UPDATES):
        raise UncheckableError(
            f"the report says {updates} updates of {planned} steps, and up to {MOST_UPDATES} are followed"
        )
    if parameters.optimizer is None or parameters.schedule is None:
        raise UnstatedError("the parameters do not say by which optimizer and schedule the weights were trained")
    try:
        optimizer = Optimizer(parameters.optimizer)
    except ValueError:
        raise UncheckableError(f"the optimizer {parameters.optimizer!r} is not known") from None
    facts = TrainingFacts(
        method=parameters.method,
        updates=updates,
        planned=planned,
        learning_rate=_number(parameters.learning_rate, "learning_rate", positive=True),
        schedule=parameters.schedule,
        warmup=_whole(parameters.warmup_steps, "warmup_steps"),
        optimizer=optimizer,
        batch_size=_number(parameters.batch_size, "batch_size", positive=True),
        examples=_whole(parameters.examples, "examples"),
        noise_multiplier=_noise(parameters) if method.noised else 0.0,
        joint_multiplier=_number(parameters.noise_multiplier, "noise_multiplier") if method.noised else None,
        clip_norms=_norms(parameters, updates),
        clip_norm=_number(parameters.clip_norm, "clip_norm", positive=True) if method.clipped else None,
        momentum=_fraction(parameters.momentum, "momentum") if optimizer is Optimizer.MOMENTUM else 0.0,
        beta1=_fraction(parameters.beta1, "beta1"),
        beta2=_fraction(parameters.beta2, "beta2"),
        weight_decay=_number(parameters.weight_decay, "weight_decay"),
        correlation=_correlation(parameters, updates),
        gaps=updates != parameters.steps_begun,
        canaries=_canaries(parameters),
    )
    if facts.schedule not in _SCHEDULES or facts.warmup > MOST_UPDATES:
        raise UncheckableError(f"the schedule {facts.schedule!r} with {facts.warmup} steps of warm-up is not known")
    if facts.examples < 1:
        raise UncheckableError(f"the report says {facts.examples} examples")
    return facts


def _noise(parameters: StatedTraining) -> float:
    """The noise multiplier of the sum of gradients."""
    on_sum = getattr(parameters, "sum_noise_multiplier", None)
    return _number(parameters.noise_multiplier if on_sum is None else on_sum, "noise_multiplier", positive=True)


def _norms(parameters: StatedTraining, updates: int) -> tuple[float, ...] | None:
    """The clip norms of all updates if they change, else None."""
    stated = getattr(parameters, "clip_norms", None)
    if stated is None:
        return None
    if len(stated) < updates:
        raise UncheckableError(f"the report states {len(stated)} clip norms, and {updates} updates")
    return tuple(_number(norm, "clip_norms", positive=True) for norm in stated[:updates])


def _canaries(parameters: StatedTraining) -> MixedIn | None:
    """The canary gradients: like records, or like users if each record of a user is clipped separately."""
    count = parameters.gradient_canaries
    if not count:
        return None
    examples = max(1, _whole(parameters.examples, "examples"))
    rate = min(1.0, _number(parameters.batch_size, "batch_size", positive=True) / examples)
    if (bands := getattr(parameters, "coefficients", None)) is not None:
        return MixedIn(count=count, most=1.0, share=min(1.0, rate * len(bands)), apart=len(bands))
    if getattr(parameters, "matrix", None) is not None:
        return MixedIn(count=count, most=1.0, share=1.0, apart=round(1 / rate))
    if (group := parameters.max_records_per_user) is not None:
        return MixedIn(
            count=count, most=float(group), share=-math.expm1(group * math.log1p(-rate)) if rate < 1 else 1.0
        )
    # In a full batch, a canary may displace a record with the opposite gradient.
    cut = getattr(parameters, "largest_batch", None) is not None
    return MixedIn(count=count, most=2.0 if cut else 1.0, share=rate)


def _correlation(parameters: StatedTraining, updates: int) -> tuple[float, ...]:
    """The coefficients of noise that is correlated over steps; (1.0,) for independent noise."""
    stated, matrix = getattr(parameters, "coefficients", None), getattr(parameters, "matrix", None)
    if matrix is not None:
        stated = _column(matrix, updates)
    if stated is None:
        return (1.0,)
    if not stated or stated[0] <= 0 or not all(abs(value) <= _LARGEST for value in stated):
        raise UncheckableError("the noise's coefficients are not those of a matrix that has an inverse")
    return tuple(stated)


def _column(matrix: Any, updates: int) -> tuple[float, ...]:
    """The coefficients that follow from the buffers of ``matrix``."""
    if updates > MOST_CORRELATED:
        raise UncheckableError(
            f"noise is correlated over {updates} updates, and at most {MOST_CORRELATED} are followed so"
        )
    if len(matrix.weights) != len(matrix.decays) or not all(0 <= decay < 1 for decay in matrix.decays):
        raise UncheckableError("the noise's matrix has no buffers with a weight and a decay below 1 each")
    return tuple(column(matrix.first, matrix.weights, matrix.decays, updates).tolist())


def facts_of(report: PrivacyReport) -> StatedTraining:
    """The parameters of a training. Raises UncheckableError if they are unreadable."""
    try:
        return training_of(report)
    except ParametersError as fault:
        raise UncheckableError(str(fault)) from None


def _whole(value: int | None, name: str) -> int:
    if value is None or not 0 <= value < 1 << 53:
        raise UnstatedError(f"the parameters do not say {name} as a whole number of a training")
    return value


def _number(value: float | None, name: str, *, positive: bool = False) -> float:
    if value is None or not 0 <= value <= _LARGEST:
        raise UnstatedError(f"the parameters do not say {name} as a number of a training")
    if positive and value < 1 / _LARGEST:
        raise UncheckableError(f"the parameters say {name} {value}, which no training has")
    return value


def _fraction(value: float | None, name: str) -> float:
    number = _number(value, name)
    if number >= 1:
        raise UncheckableError(f"the parameters say {name} {number:g}, which must be below 1")
    return number
