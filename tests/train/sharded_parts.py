"""What trainings in shards are made of: batches, a text without a finite loss, known noise and measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privctl.domain.events import Batches
from privctl.models.choices import TaskName
from privctl.models.encoding import TextOptions
from privctl.models.loading import load_for_training
from privctl.models.tasks.build import text_task
from privctl.models.tasks.language import CausalLanguage
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.choices import FormatName
from privctl.train.clipping.shards import is_shard
from privctl.train.methods.dpquant.quantization import Measuring, Quantization
from privctl.train.methods.dpquant.schedule import LayerSchedule
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity
from privctl.train.methods.dpquant.settings import LayerMode
from privctl.train.micro_batches import MicroBatches
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.sampling import PoissonBatches
from tests.models.tasks.small import RECORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU = torch.device("cpu")
#: None at all, one (which leaves other processes without any), and all; the one of ``BROKEN`` among them.
STEPS: tuple[tuple[int, ...], ...] = ((), (1,), tuple(range(10)), (), (3, 9, 4))
BROKEN = 4


@dataclass(frozen=True, slots=True)
class Given:
    """The batches of ``STEPS``."""

    kind: Batches = Batches.POISSON

    def batch(self, step: int) -> NDArray[np.int64]:
        return np.array(STEPS[step], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(CausalLanguage):
    """A language task of which one text has no finite loss."""

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        bad = torch.tensor(self.corpus.examples[BROKEN].ids)
        ids = batch["input_ids"][:, : len(bad)]
        hit = (ids == bad).all(1) if ids.shape[1] == len(bad) else torch.zeros(len(ids), dtype=torch.bool)
        found = CausalLanguage.losses(self, network, batch)
        return found * torch.where(hit, float("inf"), 1.0)  # whose gradient is that of the others in other rows


class KnownNoise:
    """The same deviates for an entry, whoever holds it: full noise of one standard deviation, once."""

    description, cryptographic = "known", False

    def __init__(self, network: nn.Module) -> None:
        self._parameters = list(network.parameters())

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        drawn = torch.Generator().manual_seed(step)
        for tensor, parameter in zip(tensors, self._parameters, strict=True):
            noise = torch.randn(parameter.shape, generator=drawn) * stddev
            if is_shard(parameter):
                shared: Any = parameter
                rank, rows = shared.device_mesh.get_local_rank(), -(-len(noise) // shared.device_mesh.size())
                noise = noise[rank * rows : (rank + 1) * rows]
            tensor += noise


def start(
    model: Path, task: type[CausalLanguage] = CausalLanguage, workers: Workers | None = None
) -> tuple[Any, CausalLanguage]:
    unfilled = workers is not None and workers.lockstep and not workers.is_main
    loaded = load_for_training(model, TaskName.CAUSAL_LM, seed=1, unfilled=unfilled)
    made: Any = text_task(loaded, [replace(r, text=r.text[i:]) for i in (0, 1) for r in RECORDS], TextOptions())
    return loaded.network, task(corpus=made.corpus, facts=made.facts)


def quantization(network: nn.Module, task: CausalLanguage, workers: Workers) -> Quantization:
    """Two measurements, by known coins and noise, which choose two layers in every other of the epochs of one step."""
    layers = QuantizedLayers(network=network, format=FORMATS[FormatName.LUQ_FP4], seed=b"rounding")
    measured = LayerSensitivity(
        network=network, layers=layers, names=layers.names, task=task, losses=lambda b: task.losses(network, b),
        batches=PoissonBatches(len(task), 0.2, NoiseSource(4)), noise=NoiseSource(5), noise_multiplier=0.1,
        clip_norm=1.0, size=4.0, workers=workers, device=CPU,
        micro=MicroBatches(task=task, examples=3, tokens=4096, device=CPU, workers=workers),
    )  # fmt: skip
    schedule = LayerSchedule(
        names=layers.names, costs=tuple(1.0 for _ in layers.names), mode=LayerMode.DPQUANT, seed=b"layers",
        fraction=0.3, beta=10.0,
    )  # fmt: skip
    plan = Measuring(sensitivity=measured, every=2, repetitions=1, most=2, smoothing=0.5)
    return Quantization(layers=layers, schedule=schedule, task=task, epoch_steps=1, measuring=plan)
