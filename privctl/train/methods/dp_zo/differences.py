"""Differences of each example's loss on both sides of the weights, the only function of private examples in DP-ZO.

Each example passes through the network by itself, in full float32. So the number that is clipped depends on that
example and on weights that are released anyway, but not on the rest of the batch; rounding to float32 does not matter,
as the rounded number is clipped. Several examples at once would be rounded together, and dividing by the perturbation
makes such rounding about a thousand times larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privctl.domain.progress import Notify
from privctl.models.tasks.base import Task
from privctl.train.clipping.factors import rounding_margin
from privctl.train.clipping.products import full_precision
from privctl.train.directional.clipped import clipped
from privctl.train.directional.passes import check_losses
from privctl.train.methods.dp_zo.grid import MovableWeights
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.micro_batches import MicroBatches


@dataclass(slots=True, kw_only=True)
class LossDifferences:
    """Clipped sums of (L(w + h z) - L(w - h z)) / (2 h) along each of a step's ``directions`` z of +-1.

    h is ``perturbation``. An example's vector of differences is clipped to ``clip_norm``, less a margin for rounding of
    the sum.
    """

    network: nn.Module
    task: Task
    weights: MovableWeights
    directions: int
    perturbation: float
    clip_norm: float
    device: torch.device
    notify: Notify = lambda _: None
    _alone: MicroBatches = field(init=False)

    def __post_init__(self) -> None:
        self._alone = MicroBatches(task=self.task, examples=1, tokens=1, device=self.device, notify=self.notify)

    def sums(self, units: Sequence[int], step: int, tally: EpochStats) -> Tensor:
        """The sums (directions,) float64 over ``units``, where non-finite vectors count as zero.

        The weights are unchanged afterwards. Adds norms and losses to ``tally``.
        """
        columns: list[Tensor] = []
        losses = torch.zeros(len(units), dtype=torch.float64)
        for direction in range(self.directions):
            sides = []
            with self.weights.moved(step, direction) as signs:
                for _ in signs:
                    sides.append(self._losses(units, step))
            losses += (sides[0] + sides[1]) / (2 * self.directions)
            columns.append((sides[0] - sides[1]) / (2 * self.perturbation))
        total, norms = clipped(torch.stack(columns, 1), self.clip_norm * (1 - rounding_margin(reduced=False)))
        sound = ~norms.isnan()
        tally.norms.append(norms[sound])
        tally.losses.append(losses[sound])
        tally.zeroed += int((~sound).sum())
        return total

    def _losses(self, units: Sequence[int], step: int) -> Tensor:
        """Each example's loss (n,) float64 at the current weights."""
        losses: list[Tensor] = []

        def compute(examples: list[int]) -> None:
            losses.append(single_example_loss(self.network, self.task, examples[0], step, self.device))

        self._alone.each(units, step, compute, restart=losses.clear)
        return torch.cat([torch.empty(0, dtype=torch.float64), *(loss.double().cpu() for loss in losses)])


def single_example_loss(network: nn.Module, task: Task, example: int, step: int, device: torch.device) -> Tensor:
    """The loss (1,) float32 of ``example``, which passes through the network by itself."""
    with torch.no_grad(), full_precision(device):
        return check_losses(task.losses(network, task.batch([example], device, step)))
