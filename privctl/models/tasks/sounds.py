"""Classification of sounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.data.columns import HeadKind
from privctl.models.choices import TaskName
from privctl.models.sounds import SoundFacts, sound_logits
from privctl.models.tasks.base import moved
from privctl.models.tasks.classification import OneSize
from privctl.models.tasks.units import content_key

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundClassification(OneSize):
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

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; the features, (n, length) or (n, length, features) float32, and ``labels`` as for texts."""
        inputs = self.facts.padded([self.features[e] for e in examples], self.length)
        inputs["labels"] = self.label_tensor(examples)
        return {name: moved(tensor, device) for name, tensor in inputs.items()}

    def keys(self, examples: Sequence[int]) -> list[int]:
        """See ``Task``."""
        return [content_key(self.features[e].tobytes(), self.label_bytes(e)) for e in examples]

    def logits(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``OneSize``."""
        return sound_logits(network, batch)
