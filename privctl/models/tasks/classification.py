"""Classification of texts and of images."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.data.columns import HeadKind
from privctl.data.images import ImageSet
from privctl.data.pixels import ImageFacts
from privctl.models.choices import TaskName
from privctl.models.images import image_logits, logits_in
from privctl.models.tasks.base import EVALUATED_EXAMPLES, EVALUATED_TOKENS, evaluation_mode, group_by_length, moved
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.language import pad_batch
from privctl.models.tasks.units import content_key
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: The number of columns of ``outcomes``.
WIDTHS = {HeadKind.ONE: 2, HeadKind.SEVERAL: 4, HeadKind.NUMBER: 1}


def label_losses(problem: HeadKind, logits: Tensor, labels: Tensor) -> Tensor:
    """Each example's loss (n,) in nats, from ``logits`` (n, outputs).

    ``labels`` are label numbers (n,), flags (n, outputs), or numbers to predict (n, 1). For several labels the loss is
    the mean of their binary cross entropies. For a number it is half the squared error, which is the negative log
    density of a Gaussian of variance 1 up to a constant.
    """
    if problem is HeadKind.SEVERAL:
        return functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none").mean(1)
    if problem is HeadKind.NUMBER:
        return (logits.float() - labels).square().sum(1) / 2
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def outcomes(problem: HeadKind, logits: Tensor, labels: Tensor) -> Tensor:
    """Each example's loss and what else ``measures`` needs: (n, ``WIDTHS[problem]``) float64 on the CPU.

    For one label, whether it is correct; for several, the numbers of true positives, false positives and false
    negatives.
    """
    logits, labels = logits.cpu(), labels.cpu()
    columns = [label_losses(problem, logits, labels).double()]
    if problem is HeadKind.ONE:
        columns.append((logits.argmax(-1) == labels).double())
    if problem is HeadKind.SEVERAL:
        predicted, true = logits > 0, labels > 0.5
        columns += [mask.double().sum(1) for mask in (predicted & true, predicted & ~true, ~predicted & true)]
    return torch.stack(columns, 1)


def measures(problem: HeadKind, parts: Sequence[Tensor]) -> dict[str, float]:
    """Mean loss, and accuracy, micro F1 or mean squared error, over batches of ``outcomes``."""
    loss, *others = torch.cat(list(parts)).unbind(1)
    results = {"loss": float(loss.mean())}
    if problem is HeadKind.ONE:
        results["accuracy"] = float(others[0].mean())
    if problem is HeadKind.SEVERAL:
        right, wrong, missed = (float(count.sum()) for count in others)
        results["micro_f1"] = 2 * right / (2 * right + wrong + missed) if right else 0.0
    if problem is HeadKind.NUMBER:
        results["squared_error"] = 2 * results["loss"]
    return {**results, "examples": float(len(loss))}


def text_logits(network: nn.Module, batch: Mapping[str, Tensor], **more: Tensor) -> Tensor:
    """The logits of ``network`` for the ``input_ids`` of ``batch`` and ``more`` inputs by name."""
    # A cache is useless here, and some hybrid networks fail with it.
    taken = inspect.signature(getattr(network, "forward", network)).parameters
    given = {"use_cache": False} if "use_cache" in taken else {}
    return logits_in(network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **more, **given))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextClassification(CorpusTask):
    """Predicting a text's label, several labels, or a number, depending on ``problem``.

    ``labels`` has the number of each record's label, or targets (records, outputs) float32.
    """

    labels: Sequence[int] | NDArray[np.int32] | NDArray[np.float32]
    problem: HeadKind = HeadKind.ONE

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.TEXT_CLASSIFICATION

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``labels`` (n,) int64, or (n, outputs) float32."""
        rows = self.rows(examples)
        labels = torch.from_numpy(np.stack([np.asarray(self.labels[row.record]) for row in rows]))
        labels = labels.long() if self.problem is HeadKind.ONE else labels.float()
        return {**pad_batch(rows, self.facts.pad, device, self.padding), "labels": moved(labels, device)}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return label_losses(self.problem, text_logits(network, batch), batch["labels"])

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats, and accuracy, micro F1 or squared error, over all ``examples``."""

        def found(group: Sequence[int]) -> Tensor:
            batch = self.batch(group, device, 0)
            return outcomes(self.problem, text_logits(network, batch), batch["labels"])

        everything = range(len(self.corpus.examples))
        groups = list(group_by_length(everything, self.length, EVALUATED_EXAMPLES, EVALUATED_TOKENS))
        with evaluation_mode(network):
            return measures(self.problem, workers.spread(groups, found, WIDTHS[self.problem]))


class OneSize(ABC):
    """What tasks on images and on sounds have in common: records of one size, each of them a unit with its label.

    ``labels`` has the number of each record's label, or targets (records, outputs) float32.
    """

    __slots__ = ()

    labels: Sequence[int] | NDArray[np.float32]
    problem: HeadKind

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``."""

    @abstractmethod
    def logits(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """What ``network`` predicts of a ``batch``, (n, outputs)."""

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """See ``Task``; all records have one size, so ``max_tokens`` does not apply."""
        return group_by_length([int(unit) for unit in units], lambda _: 1, max_examples)

    def label_tensor(self, examples: Sequence[int]) -> Tensor:
        """The labels of ``examples`` as for texts."""
        labels = torch.from_numpy(np.stack([np.asarray(self.labels[e]) for e in examples]))
        return labels.long() if self.problem is HeadKind.ONE else labels.float()

    def label_bytes(self, example: int) -> bytes:
        """An example's label, to tell examples apart."""
        label = self.labels[example]
        return label.tobytes() if isinstance(label, np.ndarray) else str(label).encode()

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return label_losses(self.problem, self.logits(network, batch), batch["labels"])

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats, and accuracy, micro F1 or squared error, over all ``examples``."""

        def found(group: Sequence[int]) -> Tensor:
            batch = self.batch(group, device, 0)
            return outcomes(self.problem, self.logits(network, batch), batch["labels"])

        groups = list(group_by_length(range(len(self)), lambda _: 1, EVALUATED_EXAMPLES))
        with evaluation_mode(network):
            return measures(self.problem, workers.spread(groups, found, WIDTHS[self.problem]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClassification(OneSize):
    """Predicting an image's label, several labels, or a number, depending on ``problem``; every image is a unit.

    ``labels`` has the number of each image's label, or targets (images, outputs) float32.
    """

    images: ImageSet
    facts: ImageFacts
    labels: Sequence[int] | NDArray[np.float32]
    problem: HeadKind = HeadKind.ONE

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.IMAGE_CLASSIFICATION

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``pixel_values`` (n, channels, height, width) float32, ``labels`` as for texts."""
        pixels = moved(torch.from_numpy(self.images.pixels[list(examples)]), device)
        return {"pixel_values": self.facts.scale(pixels), "labels": moved(self.label_tensor(examples), device)}

    def keys(self, examples: Sequence[int]) -> list[int]:
        """See ``Task``."""
        return [content_key(self.images.pixels[e].tobytes(), self.label_bytes(e)) for e in examples]

    def logits(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``OneSize``."""
        return image_logits(network, batch["pixel_values"])
