"""Causal and masked language modelling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.models.choices import TaskName
from privctl.models.corpora import Encoded
from privctl.models.tasks.base import EVALUATED_EXAMPLES, EVALUATED_TOKENS, evaluation_mode, group_by_length, moved
from privctl.models.tasks.corpus import CorpusTask
from privctl.parallel import ALONE, Workers

#: Devlin et al. 2019, section 3.1: 15 % of the tokens are predicted; of these 80 % are masked, 10 % replaced.
_PREDICTED = 0.15
_MASKED = 0.8
_REPLACED = 0.1


def pad_batch(rows: Sequence[Encoded], pad: int, device: torch.device, least: int | None = None) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask``, both (n, length) int64, padded on the right to at least ``least``."""
    length = max(least or 0, *(len(row.ids) for row in rows))
    ids = np.full((len(rows), length), pad, np.int64)
    mask = np.zeros((len(rows), length), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
        mask[i, : len(row.ids)] = 1
    return {"input_ids": moved(torch.from_numpy(ids), device), "attention_mask": moved(torch.from_numpy(mask), device)}


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropies (n, length) in nats, from (n, length, vocabulary) and (n, length)."""
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


def _sum_of_rows(parts: Sequence[Tensor]) -> list[float]:
    """The sum of the rows (1, k), in order, so that it does not depend on how workers shared them."""
    return [sum(column, 0.0) for column in zip(*(part[0].tolist() for part in parts), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalLanguage(CorpusTask):
    """Predicting each next token; an example's loss is the mean over its counted tokens."""

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.CAUSAL_LM

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``targets`` (n, length) are the next ids, ``weights`` 1 / (counted tokens) at counted ones."""
        rows = self.rows(examples)
        inputs = pad_batch(rows, self.facts.pad, device, self.padding)
        weights = np.zeros(tuple(inputs["input_ids"].shape), np.float32)
        for i, row in enumerate(rows):
            weights[i, : len(row.ids) - 1] = row.counted[1:] / row.counted.sum()
        # The last position wraps around to the first id, and has weight 0.
        targets = inputs["input_ids"].roll(-1, dims=1)
        return {**inputs, "targets": targets, "weights": moved(torch.from_numpy(weights), device)}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        logits = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
        return (token_losses(logits, batch["targets"]) * batch["weights"]).sum(1)

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats per token over all counted ``tokens``, and ``perplexity``."""
        return measure_tokens(self, lambda group: self.losses(network, self.batch(group, device, 0)), network, workers)


def measure_tokens(
    task: CorpusTask, losses_of: Callable[[Sequence[int]], Tensor], network: nn.Module, workers: Workers
) -> dict[str, float]:
    """``loss`` in nats per token over all counted ``tokens``, and ``perplexity``.

    ``losses_of`` returns each example's mean over its counted tokens, (n,).
    """

    def sums(group: Sequence[int]) -> Tensor:
        counts = torch.tensor([int(task.corpus.examples[e].counted.sum()) for e in group], dtype=torch.float64)
        losses = losses_of(group).double().cpu()
        return torch.stack([losses @ counts, counts.sum()])[None]

    everything = range(len(task.corpus.examples))
    groups = list(group_by_length(everything, task.length, EVALUATED_EXAMPLES, EVALUATED_TOKENS))
    with evaluation_mode(network):
        total, tokens = _sum_of_rows(workers.spread(groups, sums, 2))
    return {"loss": total / tokens, "perplexity": _exponential(total / tokens), "tokens": float(tokens)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedLanguage(CorpusTask):
    """Predicting masked tokens; an example's loss is the mean over its predicted tokens, at least one.

    These are drawn anew in each step. ``mask`` is the id of the mask token.
    """

    mask: int

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.MASKED_LM

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``targets`` (n, length) are the true ids, ``weights`` 1 / (predicted tokens) at these."""
        rows = self.rows(examples)
        inputs = pad_batch(rows, self.facts.pad, torch.device("cpu"), self.padding)
        targets = inputs["input_ids"].clone()
        weights = torch.zeros(targets.shape)
        for i, row in enumerate(rows):
            hidden, shown_ids = self._hide(row, step)
            inputs["input_ids"][i, : len(shown_ids)] = torch.from_numpy(shown_ids)
            weights[i, torch.from_numpy(hidden)] = 1 / len(hidden)
        tensors = {**inputs, "targets": targets, "weights": weights}
        return {name: moved(tensor, device) for name, tensor in tensors.items()}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return (token_losses(self._logits(network, batch), batch["targets"]) * batch["weights"]).sum(1)

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` (nats), ``perplexity`` and ``accuracy`` over the predicted ``tokens``."""

        def sums(group: Sequence[int]) -> Tensor:
            batch = self.batch(group, device, 0)
            hidden, targets = batch["weights"] > 0, batch["targets"]
            logits = self._logits(network, batch)
            losses, right = token_losses(logits, targets)[hidden], (logits.argmax(-1) == targets)[hidden]
            return torch.stack([losses.double().sum(), right.double().sum(), hidden.double().sum()])[None].cpu()

        everything = range(len(self.corpus.examples))
        groups = list(group_by_length(everything, self.length, EVALUATED_EXAMPLES, EVALUATED_TOKENS))
        with evaluation_mode(network):
            total, correct, tokens = _sum_of_rows(workers.spread(groups, sums, 3))
        loss = total / tokens
        return {"loss": loss, "perplexity": _exponential(loss), "accuracy": correct / tokens, "tokens": float(tokens)}

    @staticmethod
    def _logits(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits

    def _hide(self, row: Encoded, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(sorted positions to predict, input ids (length,)), both int64."""
        source = np.random.default_rng((self.seed, step, row.key))
        candidates = np.flatnonzero(row.counted)
        draws = source.random(len(candidates))
        hidden = candidates[draws < _PREDICTED]
        if not len(hidden):
            hidden = candidates[[int(draws.argmin())]]
        fate = source.random(len(hidden))
        others = source.integers(self.facts.vocabulary, size=len(hidden))
        inputs = row.ids.astype(np.int64)
        inputs[hidden[fate < _MASKED]] = self.mask
        replaced = (fate >= _MASKED) & (fate < _MASKED + _REPLACED)
        inputs[hidden[replaced]] = others[replaced]
        return hidden, inputs


def _exponential(loss: float) -> float:
    """exp(loss); inf if it overflows."""
    return math.exp(loss) if loss < 700 else math.inf
