"""Shadow models trained together against one after the other: processor seconds of one thread, or a GPU's wall time."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.bench.common import publish, save

if TYPE_CHECKING:
    from privctl.shadow.pool import ShadowPool

WORDS = ["cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 16, 32, 64])


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    import torch

    torch.set_num_threads(1)
    rows, data = [], {}
    name = "shadow" if options.device == "cpu" else "shadow-cuda"
    settings = {each: getattr(options, each) for each in ("rounds", "models", "batch_size", "device")}
    for width in options.widths:
        with tempfile.TemporaryDirectory() as scratch:
            pool = _pool(Path(scratch), width, options)
            if options.device == "cuda":
                _seconds(_together, pool, options.device)  # which starts the device
            rounds = [
                (_seconds(_together, pool, options.device), _seconds(_singly, pool, options.device))
                for _ in range(options.rounds)
            ]
            size = sum(parameter.numel() for parameter in pool.start(0).network.parameters())
        together, singly = (median(side) for side in zip(*rounds, strict=True))
        gain = median(one / other for other, one in rounds)
        minute = 60 * options.models / together
        data[str(width)] = {
            "parameters": size, "together_s": together, "singly_s": singly, "gain": gain, "models_a_minute": minute,
        }  # fmt: skip
        rows.append([str(width), f"{size}", f"{together:.2f}", f"{singly:.2f}", f"{gain:.2f}", f"{minute:.0f}"])
        save(name, {**settings, "widths": data}, options.output)
    headings = ["width", "parameters", "together s", "singly s", "singly / together", "models a minute"]
    publish(name, headings, rows, {**settings, "widths": data}, options.output)


def _pool(scratch: Path, width: int, options: argparse.Namespace) -> ShadowPool:
    """A two-layer GPT-2 of that width, and 400 short records."""
    from privctl.shadow.pool import ShadowRequest, read_pool
    from privctl.train.methods import method_named
    from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest
    from tests.models.tasks.small import architecture, words

    model = architecture(scratch / "model", "gpt2", n_embd=width, n_layer=2, n_head=4)
    words().tokenizer.save_pretrained(model)
    drawn = random.Random(0)
    lines = [json.dumps({"text": " ".join(drawn.choices(WORDS, k=drawn.randint(10, 30)))}) for _ in range(400)]
    path = scratch / "data.jsonl"
    path.write_text("\n".join(lines))
    training = RetrainRequest(
        method=method_named("plain"),
        model=ModelRequest(path=model),
        data=DataRequest(train=path),
        output=scratch / "shadows",
        steps=20,
        batch_size=options.batch_size,
        device=options.device,
    )
    return read_pool(ShadowRequest(training=training, count=options.models))


def _together(pool: ShadowPool, device: str) -> None:
    import numpy as np
    import torch

    from audits.membership.shadows import coins
    from privctl.shadow.stacked import train_together

    models = range(pool.request.count)
    halves = np.stack([coins(0, index, len(pool.records)) for index in models])
    networks = [pool.start(index).network for index in models]
    assert not train_together(pool, networks, halves, torch.device(device), lambda _: None)


def _singly(pool: ShadowPool, device: str) -> None:
    import torch

    from audits.membership.shadows import coins
    from privctl.shadow.halves import train_one

    for index in range(pool.request.count):
        half = coins(0, index, len(pool.records))
        train_one(pool, pool.start(index).network, half, torch.device(device), lambda _: None)


def _seconds(work: Callable[[ShadowPool, str], None], pool: ShadowPool, device: str) -> float:
    import torch

    clock = time.process_time if device == "cpu" else time.perf_counter
    begun = clock()
    work(pool, device)
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begun
