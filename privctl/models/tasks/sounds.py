"""Classification of sounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privctl.data.columns import HeadKind
from privctl.models.choices import TaskName
from privctl.models.sounds import SoundFacts, sound_logits
from privctl.models.tasks.base import EVALUATED_EXAMPLES, evaluation_mode, group_by_length, moved
from privctl.models.tasks.classification import WIDTHS, label_losses, measures, outcomes
from privctl.models.tasks.units import content_key
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundClassification:
    """Predicting a sound's label, several labels, or a number, depending on ``problem``; every sound is a unit.

    ``features`` are the network's input for each sound, all padded to ``length``, so that no sound affects the padding
    of others. ``labels`` has the number of each sound's label, or targets (sounds, outputs) float32.
    """

    features: Sequence[NDArray[np.float32]]
    length: int
    facts: SoundFacts
    labels: Sequence[int] | NDArray[np.float32]
    problem: HeadKind = HeadKind.ONE

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.AUDIO_CLASSIFICATION

    def __len__(self) -> int:
        return len(self.features)

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """See ``Task``; all sounds are padded to one length, so ``max_tokens`` does not apply."""
        return group_by_length([int(unit) for unit in units], lambda _: 1, max_examples)

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; the features, (n, length) or (n, length, features) float32, and ``labels`` as for texts."""
        inputs = self.facts.padded([self.features[e] for e in examples], self.length)
        labels = torch.from_numpy(np.stack([np.asarray(self.labels[e]) for e in examples]))
        inputs["labels"] = labels.long() if self.problem is HeadKind.ONE else labels.float()
        return {name: moved(tensor, device) for name, tensor in inputs.items()}

    def keys(self, examples: Sequence[int]) -> list[int]:
        """See ``Task``."""
        return [content_key(self.features[e].tobytes(), self._label_bytes(e)) for e in examples]

    def _label_bytes(self, example: int) -> bytes:
        label = self.labels[example]
        return label.tobytes() if isinstance(label, np.ndarray) else str(label).encode()

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        return label_losses(self.problem, sound_logits(network, batch), batch["labels"])

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats, and accuracy, micro F1 or squared error, over all ``examples``."""

        def found(group: Sequence[int]) -> Tensor:
            batch = self.batch(group, device, 0)
            return outcomes(self.problem, sound_logits(network, batch), batch["labels"])

        groups = list(group_by_length(range(len(self)), lambda _: 1, EVALUATED_EXAMPLES))
        with evaluation_mode(network):
            return measures(self.problem, workers.spread(groups, found, WIDTHS[self.problem]))
