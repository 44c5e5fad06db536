"""Sequence-to-sequence modelling: translation, summarization, generated answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from privctl.models.choices import TaskName
from privctl.models.pairs import decoder_inputs, split
from privctl.models.tasks.base import moved
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.language import measure_tokens, token_losses
from privctl.parallel import ALONE, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceToSequence(CorpusTask):
    """Predicting a target from its source; an example's loss is the mean over the target's tokens.

    ``start`` is the decoder's first input id, None if that is the target's last token. ``padding`` is for source and
    target together, half for each.
    """

    start: int | None

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.SEQ2SEQ_LM

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``decoder_input_ids``, ``targets`` and ``weights`` are (n, longest target)."""
        sources, targets = zip(*map(split, self.rows(examples)), strict=True)
        least = -(-(self.padding or 0) // 2)
        ids, mask = _padded(sources, self.facts.pad, least)
        goals, real = _padded(targets, self.facts.pad, least)
        tensors = {
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": decoder_inputs(goals, [len(target) for target in targets], self.start),
            "targets": goals,
            "weights": (real / real.sum(1, keepdims=True)).astype(np.float32),
        }
        return {name: moved(torch.from_numpy(array), device) for name, array in tensors.items()}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
        logits = network(**inputs, use_cache=False).logits
        return (token_losses(logits, batch["targets"]) * batch["weights"]).sum(1)

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats per token over all ``tokens`` of targets, and ``perplexity``."""
        return measure_tokens(self, lambda group: self.losses(network, self.batch(group, device, 0)), network, workers)


def _padded(rows: Sequence[np.ndarray], pad: int, least: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids (n, length), padded on the right to at least ``least``; 1 at real tokens, else 0), both int64."""
    length = max(least, *(len(row) for row in rows))
    ids = np.full((len(rows), length), pad, np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    real = np.arange(length) < np.array([len(row) for row in rows])[:, None]
    return ids, real.astype(np.int64)
