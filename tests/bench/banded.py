"""What correlated noise is worth: held-out accuracy beside DP-SGD's at the same epsilon.

Two small tasks on real data: a network of one hidden layer on scikit-learn's 8 x 8 digits, and, where
``../shared/data`` is, logistic regression on hashed words of SST-2. All have the product's own batches and noise, the
same seeds of starting weights and splits, and each the learning rate, of one grid, that is best for it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from privctl.domain.shown import counted
from tests.bench.common import ROOT, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from privctl.accounting.buffered import BufferedMatrix

SHARED = ROOT.parent / "shared" / "data" / "text" / "sst2" / "train.tsv"
_HASHED = 2048
#: Name -> expected batch size, epochs, width of the hidden layer (0: none), learning rates.
TASKS = {
    "digits, 10 epochs": (75, 10.0, 32, (0.5, 1.0, 2.0, 4.0, 8.0)),
    "digits, 2 epochs": (75, 2.0, 32, (0.5, 1.0, 2.0, 4.0, 8.0)),
    "SST-2 words, 4 epochs": (128, 4.0, 0, (1.0, 2.0, 4.0, 8.0)),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, action="append", help="repeatable; 2 and 8 unless given")


def main(options: argparse.Namespace) -> None:
    """Train, count and publish."""
    import torch

    torch.set_num_threads(1)
    data: dict[str, Any] = {"seeds": options.seeds, "threads": 1, "runs": []}
    for name in TASKS:
        if name.startswith("SST-2") and not SHARED.is_file():
            continue
        for epsilon in options.epsilon or (2.0, 8.0):
            data["runs"] += compared(name, epsilon, options.seeds)
            print(name, epsilon, file=sys.stderr, flush=True)
    rows = [
        [run["task"], f"{run['epsilon']:g}", _buffers_or_bands(run), f"{run['error']:.3g}", f"{run['learning_rate']:g}",
         f"{100 * run['accuracy']:.1f} +- {100 * run['spread']:.1f}"]
        for run in data["runs"]
    ]  # fmt: skip
    headings = ["task", "epsilon", "bands", "error of sums", "learning rate", "held-out accuracy, %"]
    publish("banded", headings, rows, data, options.output)


def _buffers_or_bands(run: dict[str, Any]) -> str:
    return counted(run["buffers"], "buffer") if "buffers" in run else str(run["bands"])


def compared(name: str, epsilon: float, seeds: int) -> list[dict[str, Any]]:
    """DP-SGD, 4 bands, and the bands and the buffers that ``account`` chooses, each at its best learning rate."""
    found = []
    for event, error in _planned(name, epsilon):
        by_rate = {rate: [trained(name, event, rate, seed) for seed in range(seeds)] for rate in TASKS[name][3]}
        best = max(by_rate, key=lambda rate: mean(by_rate[rate]))
        kind = "buffers" if hasattr(event, "buffers") else "bands"
        found.append({
            "task": name, "epsilon": epsilon, kind: getattr(event, kind), "noise_multiplier": event.noise_multiplier,
            "error": event.noise_multiplier * error, "steps": event.steps,
            "learning_rate": best, "accuracy": mean(by_rate[best]),
            "spread": stdev(by_rate[best]) if seeds > 1 else 0.0,
            "all": {str(rate): values for rate, values in by_rate.items()},
        })  # fmt: skip
    return found


def _planned(name: str, epsilon: float) -> Iterator[tuple[Any, float]]:
    """The events of the ways, at delta 1e-5, and the error of their sums at noise multiplier 1."""
    from privctl.accounting import banded, buffered
    from privctl.plan.banded import BandedRequest, plan_banded
    from privctl.plan.buffered import BufferedRequest, plan_buffered

    batch, epochs, *_ = TASKS[name]
    size = len(data_of(name, 0)[0])
    steps = round(epochs * size / batch)
    for bands in (1, 4, None):
        asked = BandedRequest(sample_rate=batch / size, steps=steps, bands=bands, target=epsilon, noise_multiplier=None)
        event: Any = plan_banded(asked, 1e-5).mechanism.events[0]  # type: ignore[union-attr]
        yield event, banded.prefix_error(event.coefficients, steps)
    in_passes = BufferedRequest(
        sample_rate=1 / round(size / batch), steps=steps, buffers=None, target=epsilon, noise_multiplier=None
    )
    event = plan_buffered(in_passes, 1e-5).mechanism.events[0]  # type: ignore[union-attr]
    yield event, buffered.prefix_error(_matrix_of(event), steps)


def _matrix_of(event: Any) -> BufferedMatrix:
    from privctl.accounting.buffered import BufferedMatrix

    return BufferedMatrix(first=event.first, weights=event.weights, decays=event.decays)


def trained(name: str, event: Any, learning_rate: float, seed: int) -> float:
    """Held-out accuracy of one private training by gradient descent, clip norm 1."""
    import torch

    from privctl.domain.events import BufferedGaussian
    from privctl.randomness import NoiseSource
    from privctl.train.steps.gradient_noise import KeyedNoise
    from privctl.train.steps.sampling import BatchSource, CyclicPoisson, FixedOrder, PoissonBatches
    from privctl.train.steps.step_noise import correlated

    batch, _, width, _ = TASKS[name]
    inputs, labels, held_inputs, held_labels = data_of(name, seed)
    torch.manual_seed(seed)
    sizes = [inputs.shape[1], *([width] if width else []), int(labels.max()) + 1]
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers[:-1])
    source, fresh = NoiseSource(1000 + seed), KeyedNoise(NoiseSource(2000 + seed))
    batches: BatchSource
    if isinstance(event, BufferedGaussian):
        batches = FixedOrder(len(inputs), round(1 / event.sample_rate), seed)
        noise = correlated(fresh, None, _matrix_of(event))
    elif event.bands == 1:
        batches, noise = PoissonBatches(len(inputs), event.sample_rate, source), fresh
    else:
        batches = CyclicPoisson(len(inputs), event.bands, event.sample_rate, source)
        noise = correlated(fresh, event.coefficients)
    parameters = dict(network.named_parameters())

    def loss(weights: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        answer = torch.func.functional_call(network, weights, (example[None],))
        return torch.nn.functional.cross_entropy(answer, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    for step in range(event.steps):
        chosen = torch.from_numpy(batches.batch(step))
        gradients = each(parameters, inputs[chosen], labels[chosen]) if len(chosen) else {}
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0) if gradients else None
        sums = [
            torch.zeros_like(p) if norms is None
            else torch.einsum("n,n...->...", 1 / norms.clamp(min=1.0), gradients[key]) / batch
            for key, p in parameters.items()
        ]  # fmt: skip
        sums = [each_sum.detach().contiguous() for each_sum in sums]
        noise.release(sums, event.noise_multiplier / batch, step)
        with torch.no_grad():
            for parameter, released in zip(parameters.values(), sums, strict=True):
                parameter -= learning_rate * released
    with torch.no_grad():
        return float((network(held_inputs).argmax(1) == held_labels).double().mean())


def data_of(name: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and labels to train on, and held-out ones."""
    import torch

    inputs, labels = _sentences() if name.startswith("SST-2") else _digits()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    held = len(inputs) // 6
    return inputs[order[held:]], labels[order[held:]], inputs[order[:held]], labels[order[:held]]


def _digits() -> tuple[Tensor, Tensor]:
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target).long()


def _sentences() -> tuple[Tensor, Tensor]:
    import zlib

    import torch

    lines = [line.rsplit("\t", 1) for line in SHARED.read_text(encoding="utf-8").splitlines()]
    inputs = torch.zeros(len(lines), _HASHED)
    for row, (text, _) in enumerate(lines):
        for word in text.split():
            inputs[row, zlib.crc32(word.encode()) % _HASHED] = 1.0
    inputs /= inputs.norm(dim=1, keepdim=True).clamp(min=1.0)
    return inputs, torch.tensor([int(label) for _, label in lines])
