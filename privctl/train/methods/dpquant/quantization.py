"""The precision of a DPQuant run: when layers are measured, which of them an epoch quantizes, and its saved state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.models.tasks.base import Task
from privctl.train.methods.dpquant.draw import Floats
from privctl.train.methods.dpquant.schedule import LayerSchedule
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity, PublicSensitivity
from privctl.train.methods.dpquant.synthetic_sensitivity import SyntheticSensitivity
from privctl.train.quantized import QuantizedLayers
from privctl.train.settings.recipe import whole_epochs
from privctl.train.steps.precision import Mark

_PREFIX = "dpquant."
#: The position of a rehearsal's random words, beyond those of steps and measurements.
_REHEARSAL = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Private measurements: ``repetitions`` releases of ``sensitivity`` every ``every`` epochs, at most ``most``.

    Their mean L updates the scores S to ``smoothing`` S + (1 - ``smoothing``) L; the first one replaces them.
    """

    sensitivity: LayerSensitivity
    every: int
    repetitions: int
    most: int
    smoothing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMeasuring:
    """Measurements without private records: ``sensitivity`` gives new scores every ``every`` epochs."""

    sensitivity: PublicSensitivity | SyntheticSensitivity
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The layers that an epoch quantized, and the scores (n,) in clip norms that they were drawn by."""

    number: int
    quantized: frozenset[str]
    scores: tuple[float, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Quantization:
    """The ``Precision`` of a DPQuant run.

    An epoch is ``epoch_steps`` steps; with Poisson batches, epoch k ends with step ceil(k / ``epoch_rate``) instead,
    which is None for passes. A release that was begun before an interruption stays counted and is not repeated: once
    ``most`` were begun, the scores no longer change.
    """

    layers: QuantizedLayers
    schedule: LayerSchedule
    task: Task
    epoch_steps: int
    epoch_rate: float | None = None
    measuring: Measuring | None = None
    exact: ExactMeasuring | None = None
    _side_releases_begun: int = field(init=False, default=0)
    _epoch: int | None = field(init=False, default=None)
    _scores: Floats = field(init=False)
    _seen: bool = field(init=False, default=False)
    _epochs: list[Epoch] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._scores = np.zeros(len(self.schedule.names))

    @property
    def rounds(self) -> bool:
        """See ``Precision``."""
        return True

    @property
    def side_releases_begun(self) -> int:
        """See ``Precision``."""
        return self._side_releases_begun

    @property
    def numbers(self) -> int:
        """See ``Precision``."""
        return len(self.schedule.names)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs that have begun, in order."""
        return tuple(self._epochs)

    def begin(self, step: int, place: int, mark: Mark) -> None:
        """See ``Precision``."""
        epoch = whole_epochs(step, self.epoch_steps, self.epoch_rate)
        if epoch != self._epoch:
            self._epoch = epoch
            known = self._epochs[-1].number if self._epochs else -1
            if known < epoch:
                self._measure(epoch, mark)
                chosen = self.schedule.chosen(epoch, self._scores)
                self._epochs.append(Epoch(number=epoch, quantized=chosen, scores=tuple(self._scores.tolist())))
            self.layers.choose(self._epochs[-1].quantized)
        self.layers.begin(place)

    @contextmanager
    def on(self, examples: Sequence[int]) -> Iterator[None]:
        """See ``Precision``."""
        with self.layers.active(self.task.keys(examples)):
            yield

    @contextmanager
    def rehearsal(self, keys: Sequence[int]) -> Iterator[None]:
        """See ``Precision``. All candidate layers are quantized."""
        self.layers.choose(frozenset(self.schedule.names))
        self.layers.begin(_REHEARSAL)
        try:
            with self.layers.active(keys):
                yield
        finally:
            self.layers.choose(frozenset())

    def tensors(self) -> Mapping[str, Tensor]:
        """See ``Precision``."""
        names = self.schedule.names
        chosen = [[name in epoch.quantized for name in names] for epoch in self._epochs]
        return {
            f"{_PREFIX}numbers": torch.tensor([epoch.number for epoch in self._epochs], dtype=torch.int64),
            f"{_PREFIX}chosen": torch.tensor(chosen, dtype=torch.uint8).view(-1, len(names)),
            f"{_PREFIX}scores": torch.tensor([e.scores for e in self._epochs], dtype=torch.float64).view(
                -1, len(names)
            ),
            f"{_PREFIX}seen": torch.tensor([self._seen], dtype=torch.uint8),
            **({} if self.measuring is None else self.measuring.sensitivity.controls.tensors()),
        }

    def restore(self, tensors: Mapping[str, Tensor], side_releases_begun: int) -> None:
        """See ``Precision``. Raises InputError for the state of a network with other layers."""
        self._side_releases_begun = max(self._side_releases_begun, side_releases_begun)
        if f"{_PREFIX}numbers" not in tensors:
            return
        if self.measuring is not None:
            self.measuring.sensitivity.controls.restore(tensors)
        names = self.schedule.names
        numbers, chosen, scores = (tensors[_PREFIX + name] for name in ("numbers", "chosen", "scores"))
        if not (chosen.shape == scores.shape == (len(numbers), len(names))):
            raise InputError(f"the saved state is not of a run that chooses among {len(names)} layers; start anew")
        self._epochs = [
            Epoch(
                number=int(number),
                quantized=frozenset(name for name, taken in zip(names, row.tolist(), strict=True) if taken),
                scores=tuple(values.tolist()),
            )
            for number, row, values in zip(numbers, chosen, scores, strict=True)
        ]
        self._seen = bool(tensors[f"{_PREFIX}seen"].any())
        if self._epochs:
            self._scores = np.array(self._epochs[-1].scores)

    def _measure(self, epoch: int, mark: Mark) -> None:
        """Make the measurements due in ``epoch`` and update the scores; releases are counted before they are made."""
        if self.exact is not None and epoch % self.exact.every == 0:
            self._scores, self._seen = self.exact.sensitivity.measure(epoch), True
        plan = self.measuring
        if plan is None or epoch % plan.every:
            return
        releases = []
        for _ in range(min(plan.repetitions, plan.most - self._side_releases_begun)):
            mark(self._side_releases_begun + 1)
            number, self._side_releases_begun = self._side_releases_begun, self._side_releases_begun + 1
            releases.append(plan.sensitivity.release(number))
        if releases:
            mean = np.mean(releases, axis=0)
            kept = plan.smoothing if self._seen else 0.0
            self._scores, self._seen = kept * self._scores + (1 - kept) * mean, True
