"""How much quantizing each layer alone changes what the network gives for made-up inputs: no record is read.

The measure is the Kullback-Leibler divergence from the unquantized network's answer (Cai et al. 2020, "ZeroQ", section
3.3), which is how much its loss rises, on average, on labels drawn from that answer. The weights come from noisy steps
and the inputs from a fixed seed, so the result is post-processing.
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

#: Measurements round so many times, each time for as many inputs of their own.
ROUNDS, INPUTS = 4, 8
#: Nats that stand for an answer that is not finite.
_WORST = 1e6


def made_up(task: Task, tokens: int) -> Task:
    """The inputs: of ``tokens`` each, or of the size of the task's images or sounds."""
    return synthetic(task, [tokens] * (ROUNDS * INPUTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSensitivity:
    """Measures ``names`` of ``layers`` at the network's weights as they are, on ``task``, which ``made_up`` gave.

    ``unit`` is in nats. Nothing is released: ``measure`` uses no record.
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
        """The mean divergences (n,) in units, with the roundings of ``number``. Leaves no layer chosen.

        Every process must call it, and all get the same.
        """
        total = torch.zeros(len(self.names), dtype=torch.float64)
        with evaluation_mode(self.network):
            for turn in range(ROUNDS):
                total += self._turn(range(turn * INPUTS, (turn + 1) * INPUTS), PLACES + number * ROUNDS + turn)
        self.layers.choose(frozenset())
        mean = self.workers.broadcast(total) / (ROUNDS * INPUTS * self.unit)
        return torch.nan_to_num(mean, nan=_WORST / self.unit, posinf=_WORST / self.unit).numpy()

    def _turn(self, inputs: Sequence[int], place: int) -> Tensor:
        """The sums (n,) over ``inputs`` with the roundings of ``place``."""
        total = torch.zeros(len(self.names), dtype=torch.float64)

        def add(examples: Sequence[int]) -> None:
            if examples:
                total.add_(self._divergences(examples, place).sum(0))

        self.micro.each(inputs, place, add, restart=total.zero_)
        return total

    def _divergences(self, examples: Sequence[int], place: int) -> Tensor:
        """Each input's divergence with each layer quantized alone: (m, n) nats, float64."""
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
        """The logits of which the task makes losses."""
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
    """Each row's Kullback-Leibler divergence (n,) in nats of the answer ``after`` from that ``before``, both logits.

    It is that of what the loss is of: a label, or tokens, by their weights in the loss; the mean of the two ends of an
    answer, or of several labels; of a number, that of Gaussians of variance 1.
    """
    problem = getattr(task, "problem", HeadKind.ONE)
    if problem is HeadKind.NUMBER:
        return (before - after).square().flatten(1).sum(1) / 2
    if problem is HeadKind.SEVERAL:  # each a choice between 0 and its logit
        before, after = (torch.stack([torch.zeros_like(each), each], -1) for each in (before, after))
    if isinstance(task, QuestionAnswering):  # each of two ends among all tokens
        before, after = (_among_tokens(each, batch["padded"]) for each in (before, after))
    logs, others = functional.log_softmax(before, -1), functional.log_softmax(after, -1)
    shares = logs.exp()
    terms = torch.where(shares > 0, shares * (logs - others), torch.zeros_like(shares))
    found = terms.sum(-1).clamp(min=0)  # below 0 it is rounding
    if "weights" in batch:
        return (found * batch["weights"]).sum(1)
    return found if found.dim() == 1 else found.mean(1)


def _among_tokens(logits: Tensor, padded: Tensor) -> Tensor:
    """The logits (n, 2, tokens) of both ends of an answer, which no ``padded`` token can be."""
    return logits.masked_fill(padded[:, :, None], -torch.inf).transpose(1, 2)
