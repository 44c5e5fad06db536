"""Whether an adaptive clip norm cures a wrong one: held-out accuracy from a first norm 10 times too large or too small.

Two small tasks on real data (those of ``banded``), by ``privctl.make_private`` and gradient descent, at the same
epsilon. The right clip norm is the fixed one that, with its best learning rate, is the most accurate; from there the
norm is made wrong, and nothing else. An adaptive norm has the learning rate that is best for it where it begins right.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tests.bench.banded import SHARED, data_of
from tests.bench.common import publish

#: Name -> batch size, epochs, width of the hidden layer (0: none).
TASKS = {"digits, 10 epochs": (75, 10, 32), "SST-2 words, 4 epochs": (128, 4, 0)}
_NORMS = (0.3, 1.0, 3.0)
#: Of a learning rate times the clip norm: how far one gradient moves the weights.
_MOVES = (1.0, 2.0, 4.0)
_QUANTILE = 0.5


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, action="append", help="repeatable; 2 and 8 unless given")


def main(options: argparse.Namespace) -> None:
    """Train, count and publish."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data: dict[str, Any] = {"seeds": options.seeds, "threads": 1, "quantile": _QUANTILE, "runs": []}
    for epsilon, name in itertools.product(options.epsilon or (8.0, 2.0), TASKS):
        if name.startswith("SST-2") and not SHARED.is_file():
            continue
        data["runs"] += compared(name, epsilon, options.seeds)
        print(name, epsilon, file=sys.stderr, flush=True)
        _publish(data, options.output)  # what is known so far: a quiet machine takes ten minutes for all


def _publish(data: dict[str, Any], output: Path | None) -> None:
    rows = [
        [run["task"], f"{run['epsilon']:g}", run["clipping"], f"{run['learning_rate']:g}", f"{run['first']:g}",
         f"{run['last']:.3g}", f"{100 * run['accuracy']:.1f} +- {100 * run['spread']:.1f}"]
        for run in data["runs"]
    ]  # fmt: skip
    headings = ["task", "epsilon", "clip norm", "learning rate", "first", "last", "held-out accuracy, %"]
    publish("adaptive-clipping", headings, rows, data, output)


def compared(name: str, epsilon: float, seeds: int) -> list[dict[str, Any]]:
    """A fixed clip norm and an adaptive one, each from the right norm and from ten times more and less."""

    def tried(norm: float, rate: float, quantile: float | None) -> list[tuple[float, float]]:
        return [trained(name, epsilon, norm, rate, quantile, seed) for seed in range(seeds)]

    def accuracy(runs: list[tuple[float, float]]) -> float:
        return mean(run[0] for run in runs)

    fixed = {(norm, move): tried(norm, move / norm, None) for norm in _NORMS for move in _MOVES}
    right, move = max(fixed, key=lambda key: accuracy(fixed[key]))
    adaptive = {move: tried(right, move / right, _QUANTILE) for move in _MOVES}
    rates = {"fixed": move / right, "adaptive": max(adaptive, key=lambda key: accuracy(adaptive[key])) / right}
    found = []
    for clipping, factor in itertools.product(rates, (0.1, 1.0, 10.0)):
        runs = tried(right * factor, rates[clipping], _QUANTILE if clipping == "adaptive" else None)
        found.append({
            "task": name, "epsilon": epsilon, "clipping": clipping, "learning_rate": rates[clipping],
            "first": right * factor, "last": mean(run[1] for run in runs), "accuracy": accuracy(runs),
            "spread": stdev(run[0] for run in runs) if seeds > 1 else 0.0,
        })  # fmt: skip
    return found


def trained(
    name: str, epsilon: float, norm: float, learning_rate: float, quantile: float | None, seed: int
) -> tuple[float, float]:
    """Held-out accuracy and last clip norm of one private training."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from privctl import make_private

    batch, epochs, width = TASKS[name]
    inputs, labels, held_inputs, held_labels = data_of(name, seed)
    torch.manual_seed(seed)
    sizes = [inputs.shape[1], *([width] if width else []), int(labels.max()) + 1]
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate)
    private = make_private(
        network, optimizer, DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True),
        epsilon=epsilon, delta=1e-5, epochs=epochs, clip_norm=norm, target_unclipped_quantile=quantile,
    )  # fmt: skip
    steps = math.ceil(round(epochs * len(inputs) / batch, 6))
    while private.steps_begun < steps:
        for rows, answers in private.loader:
            private.backward(
                lambda rows=rows, answers=answers: torch.nn.functional.cross_entropy(  # type: ignore[misc]
                    network(rows), answers, reduction="none"
                )
            )
            optimizer.step()
            if private.steps_begun == steps:
                break
    with torch.no_grad():
        return float((network(held_inputs).argmax(1) == held_labels).double().mean()), private.clip_norms[-1]
