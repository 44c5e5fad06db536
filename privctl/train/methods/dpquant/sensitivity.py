"""How much quantizing each layer alone would hurt, measured on few private examples and released with noise.

One release is one sampled Gaussian: a Poisson subsample, of each example a vector of loss differences that depends on
that example alone, clipped in L2, summed, noised, rounded onto a grid. Nothing is trained on the way. DPQuant as
published clips what is already summed over a batch, which an example can move by twice as much, and trains before it
measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privctl.models.synthetic import synthetic
from privctl.models.tasks.base import Task, evaluation_mode
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.clipping.shards import reset_after_error
from privctl.train.methods.dpquant.draw import Floats
from privctl.train.quantized import QuantizedLayers
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.sampling import BatchSource

#: Losses (n,) of a batch.
Losses = Callable[[Mapping[str, Tensor]], Tensor]

#: Measurements' draws stand behind those of any training step.
PLACES = 1 << 32
#: Public records that are measured on, if there are as many.
MOST_PUBLIC = 256
#: Tokens of a made-up record that a process passes where only others have examples left.
_SHORT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSensitivity:
    """Measures ``names`` of ``layers`` at the network's weights as they are.

    ``batches`` are Poisson, in secret, of ``size`` examples on average; ``noise_multiplier`` is noise standard
    deviation / ``clip_norm`` (nats). ``noise`` is this measurement's own source, its streams the releases' numbers.
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

    def release(self, number: int) -> Floats:
        """The noised mean (n,) of the clipped differences, in clip norms; each ``number`` may be asked for once.

        Every process must call it, and all get the same. Leaves no layer chosen.
        """
        place = PLACES + number
        total = torch.zeros(len(self.names), dtype=torch.float64)
        drawn = self.workers.share(self.batches.batch(number)).tolist()

        def add(examples: Sequence[int]) -> None:
            if examples:
                total.add_(clipped(self.differences(examples, place), self.clip_norm).sum(0))
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
        mean: Floats = (self.workers.broadcast(total) / (self.size * self.clip_norm)).numpy()
        return mean

    def differences(self, examples: Sequence[int], place: int) -> Tensor:
        """See ``loss_differences``."""
        return loss_differences(self, examples, place)

    def _accompany(self, place: int) -> None:
        """Make as many passes as ``differences`` does, in which processes that hold shards take part."""
        record = synthetic(self.task, [_SHORT], classes=1).batch([0], self.device, place)
        for _ in range(len(self.names) + 1):
            self.losses(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSensitivity:
    """As ``LayerSensitivity``, on the first ``MOST_PUBLIC`` records of a public ``task``: exact, and no release.

    ``clip_norm`` (nats) is only the unit of what is found; nothing is clipped.
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
        """The mean differences (n,) in clip norms, with the roundings of ``number``. Leaves no layer chosen."""
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
    """Each example's loss with each layer quantized alone, less that with none: (m, n) nats, float64.

    Row i is a function of example i and of ``place``, whatever passes beside it.
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
    """``rows`` (m, n), each brought within L2 ``norm``; one that is not finite becomes zero, which is within it."""
    sound = torch.isfinite(rows).all(1, keepdim=True)
    rows = torch.where(sound, rows, torch.zeros_like(rows))
    # Twice, for squares of large numbers overflow.
    rows = rows / rows.abs().amax(1, keepdim=True).clamp(min=norm) * norm
    factors = (norm / rows.norm(dim=1, keepdim=True).clamp(min=norm)).clamp(max=1)
    scaled: Tensor = rows * factors
    return scaled
