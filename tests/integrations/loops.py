"""A small network, its data and loops over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as all of torch's users call it
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.integrations.private_training import PrivateTraining

EXAMPLES, BATCH = 60, 6


class Loop:
    """The parts of a loop; ``private`` is what makes it private."""

    def __init__(self, *, noise_multiplier: float | None = 1.0, batch: int = BATCH, **more: Any) -> None:
        torch.manual_seed(0)
        self.data = TensorDataset(torch.randn(EXAMPLES, 5), torch.randint(0, 3, (EXAMPLES,)))
        self.model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.private: PrivateTraining = privctl.make_private(
            self.model,
            self.optimizer,
            DataLoader(self.data, batch_size=batch),
            noise_multiplier=noise_multiplier,
            **more,
        )

    def losses(self, inputs: Tensor, labels: Tensor) -> Callable[[], Tensor]:
        return lambda: F.cross_entropy(self.model(inputs), labels, reduction="none")

    def train(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            for inputs, labels in self.private.loader:
                self.private.backward(self.losses(inputs, labels))
                self.optimizer.step()

    def save(self, path: Path) -> Path:
        save_file(self.model.state_dict(), path)
        return path
