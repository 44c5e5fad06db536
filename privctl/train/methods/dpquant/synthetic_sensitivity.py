"""Measures how much quantizing each layer alone changes the network's outputs for synthetic inputs; reads no record.

The measure is the Kullback-Leibler divergence from the unquantized network's output (Cai et al. 2020, "ZeroQ", section
3.3), which is the expected increase of the loss on labels drawn from that output. The weights come from noisy steps and
the inputs from a fixed seed, so the result is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.data.columns import HeadKind
from privctl.models.images import logits_in
from privctl.models.synthetic import synthetic
from privctl.models.tasks.answers import QuestionAnswering
from privctl.models.tasks.base import Task, evaluation_mode
from privctl.parallel import Workers
from privctl.train.methods.dpquant.draw import Floats
from privctl.train.methods.dpquant.sensitivity import PLACES, Losses
from privctl.train.quantized import QuantizedLayers
from privctl.train.steps.micro_batches import MicroBatches

#: The number of random roundings per measurement, and of inputs for each.
ROUNDS, INPUTS = 4, 8
#: The divergence, in nats, that replaces one that is not finite.
_WORST = 1e6


def synthetic_inputs(task: Task, tokens: int) -> Task:
    """The synthetic inputs, of ``tokens`` each or of the size of the task's images or sounds."""
    return synthetic(task, [tokens] * (ROUNDS * INPUTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSensitivity:
    """Measures the layers ``names`` at the network's current weights, on a ``task`` made by ``synthetic_inputs``.

    ``unit`` is in nats. Nothing is released, as ``measure`` uses no record.
    """

    network: nn.Module
    layers: QuantizedLayers
    names: tuple[str, ...]
    task: Task
    losses: Losses
    unit: float
    micro: MicroBatches
    workers: Workers
    device: torch.device

    def measure(self, number: int) -> Floats:
        """The mean divergences (n,) in units, with rounding ``number``. No layer is quantized afterwards.

        Every process must call this, and all get the same values.
        """
        total = torch.zeros(len(self.names), dtype=torch.float64)
        with evaluation_mode(self.network):
            for turn in range(ROUNDS):
                total += self._turn(range(turn * INPUTS, (turn + 1) * INPUTS), PLACES + number * ROUNDS + turn)
        self.layers.choose(frozenset())
        mean = self.workers.broadcast(total) / (ROUNDS * INPUTS * self.unit)
        return torch.nan_to_num(mean, nan=_WORST / self.unit, posinf=_WORST / self.unit).numpy()

    def _turn(self, inputs: Sequence[int], place: int) -> Tensor:
        """The sums (n,) of divergences over ``inputs``, with the random rounding of ``place``."""
        total = torch.zeros(len(self.names), dtype=torch.float64)

        def add(examples: Sequence[int]) -> None:
            if examples:
                total.add_(self._divergences(examples, place).sum(0))

        self.micro.each(inputs, place, add, restart=total.zero_)
        return total

    def _divergences(self, examples: Sequence[int], place: int) -> Tensor:
        """The divergence (m, n), in nats, float64, of each input with each layer quantized alone."""
        batch, keys = self.task.batch(examples, self.device, place), self.task.keys(examples)

        def passed(quantized: frozenset[str]) -> Tensor:
            self.layers.choose(quantized)
            self.layers.begin(place)
            with self.layers.active(keys):
                return self._answers(batch)

        plain = passed(frozenset())
        rows = [divergences(self.task, batch, plain, passed(frozenset({name}))).cpu().double() for name in self.names]
        return torch.stack(rows, dim=1)

    def _answers(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The logits from which the task computes losses."""
        answers: list[Tensor] = []

        def keep(module: nn.Module, given: Any, answer: Any) -> None:
            answers.append(answer if isinstance(answer, Tensor) else logits_in(answer))

        handle = self.network.register_forward_hook(keep)
        try:
            self.losses(batch)
        finally:
            handle.remove()
        return answers[-1].detach().float()


def divergences(task: Task, batch: Mapping[str, Tensor], before: Tensor, after: Tensor) -> Tensor:
    """The Kullback-Leibler divergence (n,) in nats of each row's output ``after`` from ``before``, both logits.

    It is for the target of the loss: a label; tokens, with their weights in the loss; the mean over the two ends of an
    answer or over several labels; for a number, the divergence of Gaussians of variance 1.
    """
    problem = getattr(task, "problem", HeadKind.ONE)
    if problem is HeadKind.NUMBER:
        return (before - after).square().flatten(1).sum(1) / 2
    if problem is HeadKind.SEVERAL:  # each label is a binary choice with logits 0 and its own
        before, after = (torch.stack([torch.zeros_like(difference), difference], -1) for difference in (before, after))
    if isinstance(task, QuestionAnswering):  # each of the two ends is a choice among all tokens
        before, after = (_among_tokens(difference, batch["padded"]) for difference in (before, after))
    logs, others = functional.log_softmax(before, -1), functional.log_softmax(after, -1)
    shares = logs.exp()
    terms = torch.where(shares > 0, shares * (logs - others), torch.zeros_like(shares))
    summed = terms.sum(-1).clamp(min=0)  # negative values are rounding errors
    if "weights" in batch:
        return (summed * batch["weights"]).sum(1)
    return summed if summed.dim() == 1 else summed.mean(1)


def _among_tokens(logits: Tensor, padded: Tensor) -> Tensor:
    """The logits (n, 2, tokens) of both ends of an answer, -inf for ``padded`` tokens."""
    return logits.masked_fill(padded[:, :, None], -torch.inf).transpose(1, 2)
