"""Clipped gradients of one layer by its own rule, and by running it again on each example, beside none clipped."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from statistics import median
from unittest import mock

import torch
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample, promotion
from privctl.train.clipping.generic import generic
from tests.bench.common import publish

LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "LSTM, 128 wide, 32 x 64 steps": (lambda: nn.LSTM(128, 128, batch_first=True), lambda: torch.randn(32, 64, 128)),
    "LSTM, 2 layers, both ways": (
        lambda: nn.LSTM(128, 128, 2, bidirectional=True, batch_first=True),
        lambda: torch.randn(32, 64, 128),
    ),
    "GRU, 128 wide": (lambda: nn.GRU(128, 128, batch_first=True), lambda: torch.randn(32, 64, 128)),
    "RNN, 128 wide": (lambda: nn.RNN(128, 128, batch_first=True), lambda: torch.randn(32, 64, 128)),
    "EmbeddingBag, 20,000 x 64, 64 x 50 ids": (
        lambda: nn.EmbeddingBag(20_000, 64),
        lambda: torch.randint(0, 20_000, (64, 50)),
    ),
    "InstanceNorm2d, 32 channels, 32 x 32 x 32": (
        lambda: nn.InstanceNorm2d(32, affine=True),
        lambda: torch.randn(32, 32, 32, 32),
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--rounds", type=int, default=7)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    found = {name: ratios(*operands, rounds=options.rounds) for name, operands in LAYERS.items()}
    rows = [[name, f"{each['plain_ms']:.1f}", f"{each['rule']:.2f}", f"{each['generic']:.2f}"]
            for name, each in found.items()]  # fmt: skip
    data = {"rounds": options.rounds, "threads": 1, "layers": found}
    publish("layers", ["layer", "plain, ms", "rule / plain", "run again / plain"], rows, data, options.output)


def ratios(make: Callable[[], nn.Module], inputs: Callable[[], Tensor], *, rounds: int) -> dict[str, float]:
    """Medians over interleaved rounds of processor times; ``plain_ms`` is a pass of the mean loss, without clipping."""
    torch.manual_seed(0)
    model, x = make(), inputs()
    ruled, again = copy.deepcopy(model), copy.deepcopy(model)
    by_rule = PerExample(ruled, Clipping(norm=1.0))
    with mock.patch.object(promotion.rules, "rule_for", return_value=generic):
        run_again = PerExample(again, Clipping(norm=1.0))
    variants: dict[str, tuple[nn.Module, Callable[[], object]]] = {
        "plain": (model, lambda: _losses(model, x).mean().backward()),
        "rule": (ruled, lambda: by_rule.accumulate(lambda: _losses(ruled, x))),
        "generic": (again, lambda: run_again.accumulate(lambda: _losses(again, x))),
    }
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, (network, call) in variants.items():
            network.zero_grad()
            started = time.process_time()
            call()
            taken[name].append(time.process_time() - started)
    base = taken["plain"][1:]  # the first warms, and is compared with autograd
    return {
        "plain_ms": 1e3 * median(base),
        **{name: median(a / b for a, b in zip(taken[name][1:], base, strict=True)) for name in ("rule", "generic")},
    }


def _losses(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first.square().flatten(1).mean(1)
