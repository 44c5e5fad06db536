"""Measures how much quantizing each layer alone raises the loss, on few private examples, and releases it with noise.

A release is one sampled Gaussian mechanism: on a Poisson subsample, each example's vector of loss differences, which
depends on no other example, is clipped in L2, summed, noised, and rounded onto a grid. Nothing is trained meanwhile.
DPQuant as published clips the sum over a batch, which one example can change by twice as much, and trains before it
measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privctl.models.synthetic import synthetic
from privctl.models.tasks.base import Task, evaluation_mode
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.clipping.factors import ROUNDING_MARGIN
from privctl.train.clipping.shards import reset_after_error
from privctl.train.methods.dpquant.control_numbers import CONTROLS, ControlNumbers
from privctl.train.methods.dpquant.draw import Floats
from privctl.train.quantized import QuantizedLayers
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.sampling import BatchSource

#: Losses (n,) of a batch.
Losses = Callable[[Mapping[str, Tensor]], Tensor]

#: The position of measurements' random words, beyond those of any training step.
PLACES = 1 << 32
#: The largest number of public records that are measured on.
MOST_PUBLIC = 256
#: The length of the synthetic record that a process passes while only other processes have examples left.
_SHORT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSensitivity:
    """Measures the layers ``names`` at the network's current weights.

    ``batches`` are secret Poisson samples of ``size`` examples on average; ``noise_multiplier`` is the noise's standard
    deviation / ``clip_norm`` (nats). ``noise`` is a source for measurements only, with one stream per release.
    Clipping leaves the fraction ``margin`` of the clip norm for float rounding, by which another batch moves losses.
    ``controls`` counts the control numbers of all releases.
    """

    network: nn.Module
    layers: QuantizedLayers
    names: tuple[str, ...]
    task: Task
    losses: Losses
    batches: BatchSource
    noise: NoiseSource
    noise_multiplier: float
    clip_norm: float
    size: float
    micro: MicroBatches
    workers: Workers
    device: torch.device
    margin: float = ROUNDING_MARGIN
    controls: ControlNumbers = field(default_factory=ControlNumbers)

    def release(self, number: int) -> Floats:
        """The noisy mean (n,) of the clipped differences, in clip norms; use each ``number`` only once.

        Every process must call this, and all get the same values. No layer is quantized afterwards. Raises PrivctlError
        if the control numbers show other noise than was asked for.
        """
        place, layers = PLACES + number, len(self.names)
        total = torch.zeros(layers + CONTROLS, dtype=torch.float64)
        drawn = self.workers.share(self.batches.batch(number)).tolist()
        norm = self.clip_norm * (1 - self.margin)

        def add(examples: Sequence[int]) -> None:
            if examples:
                total[:layers].add_(clipped(self.differences(examples, place), norm).sum(0))
            else:
                self._accompany(place)

        def restart() -> None:
            total.zero_()
            reset_after_error(self.network)

        with evaluation_mode(self.network):
            self.micro.each(drawn, place, add, restart=restart)
        self.workers.reduce_to_main([total])
        if self.workers.is_main:
            self.noise.release(number, 0, total.numpy(), self.noise_multiplier * self.clip_norm)
        released: Floats = (self.workers.broadcast(total) / self.clip_norm).numpy()
        self.controls.add(released[layers:], self.noise_multiplier)
        return released[:layers] / self.size

    def differences(self, examples: Sequence[int], place: int) -> Tensor:
        """See ``loss_differences``."""
        return loss_differences(self, examples, place)

    def _accompany(self, place: int) -> None:
        """Make as many passes as ``differences`` does, as processes that hold shards need all others for a pass."""
        record = synthetic(self.task, [_SHORT], classes=1).batch([0], self.device, place)
        for _ in range(len(self.names) + 1):
            self.losses(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSensitivity:
    """Like ``LayerSensitivity``, but exact and without a release, on the first ``MOST_PUBLIC`` records of ``task``.

    ``clip_norm`` (nats) is only the unit of the result; nothing is clipped.
    """

    network: nn.Module
    layers: QuantizedLayers
    names: tuple[str, ...]
    task: Task
    losses: Losses
    clip_norm: float
    micro: MicroBatches
    device: torch.device

    def measure(self, number: int) -> Floats:
        """The mean differences (n,) in clip norms, with rounding ``number``. No layer is quantized afterwards."""
        place, count = PLACES + number, min(len(self.task), MOST_PUBLIC)
        total = torch.zeros(len(self.names), dtype=torch.float64)

        def add(examples: Sequence[int]) -> None:
            total.add_(loss_differences(self, examples, place).sum(0))

        with evaluation_mode(self.network):
            self.micro.each(range(count), place, add, restart=total.zero_)
        self.layers.choose(frozenset())
        mean: Floats = (total / (count * self.clip_norm)).numpy()
        return mean


def loss_differences(of: LayerSensitivity | PublicSensitivity, examples: Sequence[int], place: int) -> Tensor:
    """Each example's loss with each layer quantized alone, minus the loss with none: (m, n) nats, float64.

    Row i depends on example i and on ``place`` only, not on the other examples.
    """
    batch, keys = of.task.batch(examples, of.device, place), of.task.keys(examples)

    def passed(quantized: frozenset[str]) -> Tensor:
        of.layers.choose(quantized)
        of.layers.begin(place)
        with of.layers.active(keys):
            return of.losses(batch).detach().to("cpu", torch.float64)

    plain = passed(frozenset())
    return torch.stack([passed(frozenset({name})) - plain for name in of.names], dim=1)


def clipped(rows: Tensor, norm: float) -> Tensor:
    """``rows`` (m, n), each clipped to L2 norm ``norm``; a row that is not finite becomes zero."""
    sound = torch.isfinite(rows).all(1, keepdim=True)
    rows = torch.where(sound, rows, torch.zeros_like(rows))
    # By the largest entry first, as squares of large numbers overflow.
    rows = rows / rows.abs().amax(1, keepdim=True).clamp(min=norm) * norm
    factors = (norm / rows.norm(dim=1, keepdim=True).clamp(min=norm)).clamp(max=1)
    scaled: Tensor = rows * factors
    return scaled
