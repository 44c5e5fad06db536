"""Noise on a tensor of gradients where it lies: ChaCha20 by each engine, beside AES and torch's own generator."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from privctl.randomness import NoiseSource
from privctl.randomness.device import NoiseEngine, engine_for
from privctl.randomness.device.tensor_engine import TensorEngine
from privctl.train.steps.gradient_noise import CipherNoise, KeyedNoise
from tests.bench.common import publish

#: Numbers that AES on the processor draws, where the device draws more.
_ON_PROCESSOR = 1 << 24


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--numbers", type=float, default=1e6, help="in the tensor of float32")
    parser.add_argument("--rounds", type=int, default=5)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    data = speeds(torch.device(options.device), int(options.numbers), options.rounds)
    rows = [[name, f"{1e9 * found:.2f}", f"{found / data['seconds_a_number']['torch.randn']:.2f}"]
            for name, found in data["seconds_a_number"].items()]  # fmt: skip
    publish("gradient-noise", ["way", "ns a number", "/ torch.randn"], rows, data, options.output)


def speeds(device: torch.device, numbers: int, rounds: int) -> dict[str, Any]:
    """Seconds a number of each way, by the median of ``rounds`` that take turns after one that warms.

    torch.randn is not secret: Philox on a GPU, and the Mersenne Twister on a processor, added without a grid.
    """
    calls = dict(_noise_sources(device, numbers))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, (call, count) in calls.items():
            _wait(device)
            started = time.perf_counter()
            call()
            _wait(device)
            taken[name].append((time.perf_counter() - started) / count)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "numbers": numbers,
        "rounds": rounds,
        "seconds_a_number": {name: median(found[1:]) for name, found in taken.items()},
    }


def _noise_sources(device: torch.device, numbers: int) -> Iterator[tuple[str, tuple[Callable[[], object], int]]]:
    there, here = torch.zeros(numbers, device=device), torch.zeros(min(numbers, _ON_PROCESSOR))
    turns = itertools.count()
    keyed = KeyedNoise(NoiseSource())
    yield "torch.randn", (lambda: there.add_(torch.randn_like(there)), numbers)
    yield "AES on the processor", (lambda: keyed.release([here], 1.0, next(turns)), len(here))
    for engine in _engines(device):
        noise = CipherNoise(device)
        noise._engine = engine
        yield f"ChaCha20 by {engine.name}", (lambda noise=noise: noise.release([there], 1.0, next(turns)), numbers)  # type: ignore[misc]


def _engines(device: torch.device) -> list[NoiseEngine]:
    """The one that is used on ``device``, and tensor operations."""
    used = engine_for(device)
    return [used] if isinstance(used, TensorEngine) else [used, TensorEngine()]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
