"""Classification of texts and of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.data.images import ImageSet
from privctl.data.pixels import ImageFacts
from privctl.models.choices import TaskName
from privctl.models.tasks.base import EVALUATED_EXAMPLES, EVALUATED_TOKENS, evaluation_mode, group_by_length
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.language import pad_batch
from privctl.models.tasks.units import content_key


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropies (n,) in nats, from (n, labels) and (n,)."""
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def _score(outcomes: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Mean loss and accuracy over batches of (logits, labels)."""
    logits = torch.cat([logits for logits, _ in outcomes]).cpu()
    labels = torch.cat([label for _, label in outcomes]).cpu()
    right = (logits.argmax(-1) == labels).double().mean()
    return {
        "loss": float(_losses(logits, labels).double().mean()),
        "accuracy": float(right),
        "examples": float(len(labels)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextClassification(CorpusTask):
    """Predicting a text's label; ``labels`` has its number for each record."""

    labels: Sequence[int]

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.TEXT_CLASSIFICATION

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``labels`` (n,) int64."""
        rows = self.rows(examples)
        labels = torch.tensor([self.labels[row.record] for row in rows], dtype=torch.int64)
        return {**pad_batch(rows, self.facts.pad, device, self.padding), "labels": labels.to(device)}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return _losses(self._logits(network, batch), batch["labels"])

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """``loss`` in nats and ``accuracy`` over all ``examples``."""
        outcomes = []
        everything = range(len(self.corpus.examples))
        with evaluation_mode(network):
            for group in group_by_length(everything, self.length, EVALUATED_EXAMPLES, EVALUATED_TOKENS):
                batch = self.batch(group, device, 0)
                outcomes.append((self._logits(network, batch), batch["labels"]))
        return _score(outcomes)

    @staticmethod
    def _logits(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClassification:
    """Predicting an image's label; every image is a unit. ``labels`` has its number for each image."""

    images: ImageSet
    facts: ImageFacts
    labels: Sequence[int]

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.IMAGE_CLASSIFICATION

    def __len__(self) -> int:
        return len(self.images)

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """See ``Task``; all images have one size, so ``max_tokens`` does not apply."""
        return group_by_length([int(unit) for unit in units], lambda _: 1, max_examples)

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``pixel_values`` (n, channels, height, width) float32, ``labels`` (n,) int64."""
        pixels = torch.from_numpy(self.images.pixels[list(examples)]).to(device)
        labels = torch.tensor([self.labels[e] for e in examples], dtype=torch.int64, device=device)
        return {"pixel_values": self.facts.scale(pixels), "labels": labels}

    def keys(self, examples: Sequence[int]) -> list[int]:
        """See ``Task``."""
        return [content_key(self.images.pixels[e].tobytes(), str(self.labels[e]).encode()) for e in examples]

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return _losses(network(pixel_values=batch["pixel_values"]).logits, batch["labels"])

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """``loss`` in nats and ``accuracy`` over all ``examples``."""
        outcomes = []
        with evaluation_mode(network):
            for group in group_by_length(range(len(self)), lambda _: 1, EVALUATED_EXAMPLES):
                batch = self.batch(group, device, 0)
                outcomes.append((network(pixel_values=batch["pixel_values"]).logits, batch["labels"]))
        return _score(outcomes)
