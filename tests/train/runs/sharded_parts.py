"""What trainings in shards are made of: batches, a text without a finite loss, known noise and measurements."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.encoding import TextOptions
from privctl.models.loading import load_for_training
from privctl.models.tasks.build import text_task
from privctl.models.tasks.language import CausalLanguage
from privctl.parallel import Workers, start_workers
from privctl.randomness import NoiseSource
from privctl.storage.reader import SafetensorsFile
from privctl.train.clipping.shards import is_shard, whole
from privctl.train.methods.dpquant.quantization import Measuring, Quantization
from privctl.train.methods.dpquant.schedule import LayerSchedule
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity
from privctl.train.methods.dpquant.settings import LayerMode
from privctl.train.network.sharding import shard
from privctl.train.network.tensor_bytes import TensorBytes
from privctl.train.preparation import prepare
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.settings.choices import FormatName
from privctl.train.steps.micro_batches import MicroBatches
from privctl.train.steps.sampling import PoissonBatches
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
        *every, beside = zip_longest(tensors, [*self._parameters, None])
        for tensor, parameter in every:
            noise = torch.randn(parameter.shape, generator=drawn) * stddev
            if is_shard(parameter):
                shared: Any = parameter
                rank, rows = shared.device_mesh.get_local_rank(), -(-len(noise) // shared.device_mesh.size())
                noise = noise[rank * rows : (rank + 1) * rows]
            tensor += noise
        if beside[0] is not None:  # the count that an adaptive clip norm follows
            beside[0].add_(torch.randn(1, generator=drawn) * stddev)


def start(
    model: Path, task: type[CausalLanguage] = CausalLanguage, workers: Workers | None = None, per_draw: int = 1
) -> tuple[Any, CausalLanguage]:
    """With several a draw, each of ten users has one to three texts."""
    unfilled = workers is not None and workers.lockstep and not workers.is_main
    loaded = load_for_training(model, TaskName.CAUSAL_LM, seed=1, unfilled=unfilled)
    records = [replace(r, text=r.text[i:]) for i in (0, 1) for r in RECORDS]
    if per_draw > 1:
        records = [replace(records[(u + 3 * i) % 10], unit=str(u)) for u in range(10) for i in range(1 + u % 3)]
    sharded_task: Any = text_task(loaded, records, TextOptions())
    return loaded.network, task(corpus=sharded_task.corpus, facts=sharded_task.facts, per_draw=per_draw)


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


def own_rows(model: Path, together: Workers, place: Path) -> None:
    """Each process reads its rows of a checkpoint, and no more; they are those that one process loads."""
    names = {"f32": torch.float32, "bf16": torch.bfloat16}
    if together.is_main:
        for name, kind in names.items():
            network, folder = start(model)[0], place / name
            network.to(kind).save_pretrained(folder)
            for file in model.iterdir():
                if file.name != "config.json":
                    shutil.copy(file, folder)
    together.barrier()
    for name in names:
        load = partial(load_for_training, place / name, TaskName.CAUSAL_LM)
        left, elsewhere = prepare._left_in_files(load(unfilled=True), together)
        assert left is not None
        assert elsewhere is None
        expected = load().network.state_dict()
        plain = SafetensorsFile.read
        with mock.patch.object(SafetensorsFile, "read", autospec=True, side_effect=plain) as reads:
            counted = TensorBytes()
            counted.start()
            shard(left.network, together, CPU)
            counted.stop()
        size = sum(p.numel() for p in left.network.parameters())
        took = sum(call.args[3] for call in reads.call_args_list)
        assert abs(took * together.size - size * names[name].itemsize) < 0.05 * took * together.size
        assert counted.most < 4 * size * (1 / together.size + 0.5)  # a share, and copies of no more than a block
        assert all(torch.equal(whole(each), expected[key]) for key, each in left.network.state_dict().items())
    left, _ = prepare._left_in_files(load(unfilled=True), together)
    assert left is not None
    if together.is_main:
        os.utime(place / name / "model.safetensors")
    together.barrier()
    try:
        shard(left.network, together, CPU)
    except InputError as error:
        assert "was changed since it was opened" in str(error)
    else:
        raise AssertionError("a file that was written to went unnoticed")


def require_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    apart = max(float((one[name] - other[name]).abs().max()) for name in one)
    assert apart < 2e-6, f"the weights differ by {apart}"


def run_checks(checks: Mapping[str, Callable[[Path, Workers, Path], object]], arguments: Sequence[str]) -> None:
    """Run those of ``checks`` that the command line names, after the model and a folder, in all processes together."""
    model, place, *names = arguments
    torch.set_num_threads(1)
    with start_workers(CPU) as workers:
        for name in names:
            checks[name](Path(model), replace(workers, lockstep=True), Path(place))
