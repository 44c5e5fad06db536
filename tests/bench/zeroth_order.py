"""A step of DP-ZO beside one of DP-SGD and a pass without training: processor time, and what its tensors hold."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.bench.common import publish

if TYPE_CHECKING:
    import argparse

    from privctl.train.preparation.job import TrainingJob

#: Layers and width of a GPT-2 with tied embeddings of 2048 tokens.
SHAPES = {"GPT-2 4x192": (4, 192)}
_TOKENS, _BATCH, _STEPS = 48, 32, 3
HEADINGS = (
    "model", "step", "processor time / forward pass", "time / DP-SGD with SGD", "bytes of tensors / weights'",
)  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, (layers, width) in SHAPES.items():
        with TemporaryDirectory() as folder:
            found[name] = _measured(Path(folder), layers, width, options.rounds)
    rows = [
        [name, variant, *(f"{each[key]:.2f}" for key in ("forward", "dp_sgd", "held"))]
        for name, variants in found.items()
        for variant, each in variants.items()
    ]
    data = {"rounds": options.rounds, "threads": 1, "batch": _BATCH, "tokens": _TOKENS, "shapes": found}
    publish("zeroth-order", HEADINGS, rows, data, options.output)


def _measured(folder: Path, layers: int, width: int, rounds: int) -> dict[str, dict[str, float]]:
    """Of each way: medians over interleaved rounds of its time divided by others', and its tensors' bytes."""
    from privctl.train.network.tensor_bytes import TensorBytes, bytes_of

    sgd = {"optimizer": "sgd"}
    variants = {
        "forward pass": _forward(_job(folder, layers, width, "dp-sgd", **sgd)),
        "dp-sgd, sgd": _dp_sgd(_job(folder, layers, width, "dp-sgd", **sgd)),
        "dp-sgd, adamw": _dp_sgd(_job(folder, layers, width, "dp-sgd", optimizer="adamw")),
        "dp-sgd, sgd, one record at a time": _dp_sgd(_job(folder, layers, width, "dp-sgd", alone=True, **sgd)),
        "dp-zo": _dp_zo(_job(folder, layers, width, "dp-zo", **sgd)),
    }
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, run in variants.items():
            seconds[variant].append(run())
    base = bytes_of(_job(folder, layers, width, "dp-sgd", **sgd).model.network)
    held = {}
    for variant, run in variants.items():
        gc.collect()
        counted = TensorBytes()
        counted.start()
        run()
        counted.stop()
        held[variant] = (base + counted.most) / base
    return {
        variant: {
            "forward": median(a / b for a, b in zip(taken, seconds["forward pass"], strict=True)),
            "dp_sgd": median(a / b for a, b in zip(taken, seconds["dp-sgd, sgd"], strict=True)),
            "held": held[variant],
            "seconds": median(taken),
        }
        for variant, taken in seconds.items()
    }


def _job(folder: Path, layers: int, width: int, method: str, **options: Any) -> TrainingJob:
    from transformers import GPT2Config

    from privctl.domain.mechanism import Optimizer
    from privctl.train.methods import method_named
    from privctl.train.preparation.prepare import prepare
    from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
    from tests.models.tasks.small import words

    start, data = folder / "start", folder / "train.jsonl"
    if not start.is_dir():
        config = GPT2Config(
            vocab_size=2048, n_positions=_TOKENS, n_embd=width, n_layer=layers, n_head=8, bos_token_id=0,
            eos_token_id=0, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, architectures=["GPT2LMHeadModel"],
        )  # fmt: skip
        config.save_pretrained(start)
        words().tokenizer.save_pretrained(start)
        data.write_text(('{"text": "' + "the cat sat on the mat " * 20 + '"}\n') * _BATCH)
    request = RetrainRequest(
        method=method_named(method), model=ModelRequest(path=start, from_scratch=True), data=DataRequest(train=data),
        output=folder / "out", steps=_STEPS, batch_size=_BATCH, learning_rate=1e-9, device="cpu",
        budget=BudgetRequest(noise_multiplier=1.0), optimizer=Optimizer(options["optimizer"]),
        micro_examples=1 if options.get("alone") else _BATCH,
    )  # fmt: skip
    return prepare(request)


class _All:
    """Every record in every step."""

    def __init__(self) -> None:
        pass

    def batch(self, step: int) -> Any:
        import numpy as np

        return np.arange(_BATCH)


def _of_steps(run: Callable[[Callable[[float], None]], object]) -> Callable[[], float]:
    """The least processor time of a step after the first."""

    def measured() -> float:
        ends = [time.process_time()]
        run(lambda _: ends.append(time.process_time()))
        steps = [after - before for before, after in itertools.pairwise(ends)]
        return min(steps[1:])

    return measured


def _forward(job: TrainingJob) -> Callable[[], float]:
    import torch

    device = torch.device("cpu")

    def run(advance: Callable[[float], None]) -> None:
        for step in range(_STEPS):
            with torch.inference_mode():
                for micro in job.task.micro_batches(range(_BATCH), step, _BATCH, job.recipe.micro_tokens):
                    job.task.losses(job.model.network, job.task.batch(micro, device, step))
            advance(1)

    return _of_steps(run)


def _dp_sgd(job: TrainingJob) -> Callable[[], float]:
    import torch

    from privctl.parallel import Workers
    from privctl.train.steps.contribution import clipping_of
    from privctl.train.steps.gradient_noise import noise_for
    from privctl.train.steps.loop import Trainer

    device = torch.device("cpu")

    def run(advance: Callable[[float], None]) -> None:
        Trainer(
            network=job.model.network, task=job.task, recipe=job.recipe, clipping=clipping_of(job), batches=_All(),
            noise=noise_for(device), workers=Workers(), device=device, advance=advance,
        ).run()  # fmt: skip

    return _of_steps(run)


def _dp_zo(job: TrainingJob) -> Callable[[], float]:
    import torch

    from privctl.parallel import Workers
    from privctl.train.methods.dp_zo.differences import LossDifferences
    from privctl.train.methods.dp_zo.grid import MovableWeights
    from privctl.train.methods.dp_zo.trainer import ZerothOrderTrainer
    from privctl.train.steps.gradient_noise import noise_for

    device, network = torch.device("cpu"), job.model.network

    def run(advance: Callable[[float], None]) -> None:
        differences = LossDifferences(
            network=network, task=job.task, weights=MovableWeights(dict(network.named_parameters()), b"bench", 1e-3),
            directions=1, perturbation=1e-3, clip_norm=1.0, device=device,
        )  # fmt: skip
        ZerothOrderTrainer(
            network=network, recipe=job.recipe, differences=differences, batches=_All(), noise=noise_for(device),
            workers=Workers(), advance=advance,
        ).run()  # fmt: skip

    return _of_steps(run)
