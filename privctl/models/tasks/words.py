"""Token classification: a label for each word of a text, as in named entity recognition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from privctl.models.choices import TaskName
from privctl.models.tasks.base import EVALUATED_EXAMPLES, EVALUATED_TOKENS, evaluation_mode, group_by_length, moved
from privctl.models.tasks.classification import text_logits
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.language import pad_batch, token_losses
from privctl.parallel import ALONE, Workers

_BEGIN, _END = ("B", "S"), ("E", "S")
_PREFIXES = ("B", "I", "E", "S")
_OUTSIDE = "O"
#: Columns that ``evaluate`` collects per record: loss, words, correct words; entities predicted, true, and both.
_WIDTH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class WordClassification(CorpusTask):
    """Predicting each word's label at its first token; a record's loss is the mean over its words.

    ``labels`` are the names of the labels in the order of their numbers.
    """

    labels: tuple[str, ...]

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.TOKEN_CLASSIFICATION

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``targets`` (n, length) are labels, ``weights`` 1 / (words) where a word begins, else 0."""
        rows = self.rows(examples)
        inputs = pad_batch(rows, self.facts.pad, device, self.padding)
        shape = tuple(inputs["input_ids"].shape)
        targets, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for i, row in enumerate(rows):
            assert row.numbers is not None
            targets[i, : len(row.ids)][row.counted] = row.numbers[row.counted]
            weights[i, : len(row.ids)] = row.counted / row.counted.sum()
        tensors = {"targets": torch.from_numpy(targets), "weights": torch.from_numpy(weights)}
        return {**inputs, **{name: moved(tensor, device) for name, tensor in tensors.items()}}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return (token_losses(text_logits(network, batch), batch["targets"]) * batch["weights"]).sum(1)

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats per word and ``accuracy`` over all ``tokens`` that have a label.

        If the labels are those of entities, also ``entity_f1``: an entity is correct if its words and its type are.
        """
        entities = name_entities(self.labels)

        def outcomes(group: Sequence[int]) -> Tensor:
            batch = self.batch(group, device, 0)
            logits = text_logits(network, batch)
            losses, guesses = token_losses(logits, batch["targets"]).cpu().double(), logits.argmax(-1).cpu()
            counted, targets = (batch["weights"] > 0).cpu(), batch["targets"].cpu()
            rows = []
            for loss, predicted_tags, true_tags in (
                (losses[i][mask], guesses[i][mask], targets[i][mask]) for i, mask in enumerate(counted)
            ):
                predicted, labelled = (
                    self._entities(tags) if entities else set() for tags in (predicted_tags, true_tags)
                )
                sums = float(loss.sum()), len(true_tags), int((predicted_tags == true_tags).sum())
                rows.append([*sums, len(predicted), len(labelled), len(predicted & labelled)])
            return torch.tensor(rows, dtype=torch.float64)

        everything = range(len(self.corpus.examples))
        groups = list(group_by_length(everything, self.length, EVALUATED_EXAMPLES, EVALUATED_TOKENS))
        with evaluation_mode(network):
            parts = workers.spread(groups, outcomes, _WIDTH)
        loss, words, right, predicted_count, true_count, both = torch.cat(list(parts)).sum(0).tolist()
        measured = {"loss": loss / words, "accuracy": right / words, "tokens": words}
        return measured | (
            {"entity_f1": 2 * both / (predicted_count + true_count) if both else 0.0} if entities else {}
        )

    def _entities(self, numbers: Tensor) -> set[tuple[str, int, int]]:
        return entities_in([self.labels[number] for number in numbers.tolist()])


def name_entities(labels: Sequence[str]) -> bool:
    """Whether all ``labels`` other than ``O`` are labels of entities, such as ``B-LOC`` and ``I-LOC``."""
    others = [label for label in labels if label != _OUTSIDE]
    return bool(others) and all(label[:1] in _PREFIXES and label[1:2] == "-" and label[2:] for label in others)


def entities_in(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, first word, word after the last) of each entity, from the ``labels`` of a text's words.

    As in the CoNLL 2000 evaluation and seqeval's default: an entity begins at ``B`` or ``S``, and at any other label
    that follows ``O``, ``E``, ``S`` or another type; it ends where the next one begins, and at ``O``.
    """
    entities = set()
    kind, since, before = "", 0, _OUTSIDE
    for index, label in enumerate([*labels, _OUTSIDE]):
        prefix, _, named = label.partition("-")
        begins = prefix != _OUTSIDE and (prefix in _BEGIN or before == _OUTSIDE or before in _END or named != kind)
        if before != _OUTSIDE and (begins or prefix == _OUTSIDE):
            entities.add((kind, since, index))
        if begins:
            kind, since = named, index
        before = prefix
    return entities
