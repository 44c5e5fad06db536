"""A small network with examples of its own, whose layers are measured and quantized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.models.choices import TaskName
from privctl.models.tasks.base import group_by_length
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity, PublicSensitivity
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.settings.choices import FormatName
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.sampling import PoissonBatches

CPU = torch.device("cpu")
NAMES = ("0", "2", "4")


def network() -> nn.Sequential:
    """Three layers, in float64: the same words then round the same way however sums were ordered."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()


class Blobs:
    """Classification of rows; an example's key is its content."""

    name = TaskName.TEXT_CLASSIFICATION

    def __init__(self, count: int, dtype: torch.dtype = torch.float64) -> None:
        draw = torch.Generator().manual_seed(1)
        self.rows = torch.randn(count, 6, generator=draw, dtype=torch.float64).to(dtype)
        self.labels = torch.randint(0, 3, (count,), generator=draw)

    def __len__(self) -> int:
        return len(self.rows)

    def keys(self, examples: Sequence[int]) -> list[int]:
        return [hash(tuple(self.rows[e].tolist())) & (1 << 63) - 1 for e in examples]

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        return group_by_length(units, lambda _: 1, max_examples, max_tokens)

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        return {"rows": self.rows[list(examples)], "labels": self.labels[list(examples)]}

    def losses(self, net: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return functional.cross_entropy(net(batch["rows"]), batch["labels"], reduction="none")

    def evaluate(self, net: nn.Module, device: torch.device) -> dict[str, float]:
        return {"loss": 0.0}


def sensitivity(net: nn.Module, task: Any, **changes: Any) -> LayerSensitivity:
    """All layers in LUQ-FP4; every example takes part unless said otherwise."""
    settings: dict[str, Any] = {
        "network": net,
        "layers": QuantizedLayers(network=net, format=FORMATS[FormatName.LUQ_FP4], seed=b"test"),
        "names": NAMES,
        "task": task,
        "losses": lambda batch: task.losses(net, batch),
        "batches": PoissonBatches(len(task), 1.0, NoiseSource(1)),
        "noise": NoiseSource(2),
        "noise_multiplier": 1e-12,
        "clip_norm": 0.01,
        "size": float(len(task)),
        "workers": Workers(),
        "device": CPU,
    }
    micro = MicroBatches(task=task, examples=changes.pop("micro_examples", 64), tokens=10_000, device=CPU)
    return LayerSensitivity(**{**settings, "micro": micro, **changes})


def public_sensitivity(net: nn.Module, task: Any, micro_examples: int = 64) -> PublicSensitivity:
    """As ``sensitivity``, of records that are public."""
    return PublicSensitivity(
        network=net,
        layers=QuantizedLayers(network=net, format=FORMATS[FormatName.LUQ_FP4], seed=b"test"),
        names=NAMES,
        task=task,
        losses=lambda batch: task.losses(net, batch),
        clip_norm=0.01,
        micro=MicroBatches(task=task, examples=micro_examples, tokens=10_000, device=CPU),
        device=CPU,
    )
