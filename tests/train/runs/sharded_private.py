"""What private steps need beyond sums of clipped gradients, in shards; run in each of several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privctl.accounting.banded import banded_coefficients
from privctl.accounting.buffered import BufferedMatrix
from privctl.domain.mechanism import Optimizer
from privctl.parallel import Workers, start_workers
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import GradientNoise
from privctl.train.steps.saved_state import SavedState
from privctl.train.steps.step_noise import correlated
from tests.train.runs.sharded import require_close, trained
from tests.train.runs.sharded_parts import CPU, STEPS, start

ALONE = Workers()
BUFFERS = BufferedMatrix(first=0.7, weights=(0.2, 0.1), decays=(0.9, 0.4))
#: Either keeps two tensors of noise for each parameter after two steps.
WAYS: dict[str, Callable[[GradientNoise], GradientNoise]] = {
    "bands": lambda noise: correlated(noise, banded_coefficients(3, len(STEPS))),
    "buffers": lambda noise: correlated(noise, None, BUFFERS),
}


def same_correlated_noise(model: Path, together: Workers, place: Path) -> None:
    """Each process keeps its shards' earlier noise, saves it with the rest, and takes its part of what was saved.

    Noise of a step that began and was lost is missing in all of them.
    """
    run = partial(trained, model, method="dp-sgd", optimizer=Optimizer.SGD)
    plain, _ = run(workers=ALONE)
    shapes = sorted(p.shape for p in start(model)[0].parameters())
    for name, way in WAYS.items():
        expected, _ = run(workers=ALONE, correlate=way)
        assert max(float((expected[each] - plain[each]).abs().max()) for each in plain) > 1e-3
        folder = RunFolder.begin(place / name, {}) if together.is_main else None
        run(workers=together, correlate=way, folder=folder, stop=3)
        together.barrier()
        saved = _saved(place / name)
        kept = [each.shape for key, each in saved.tensors.items() if key.startswith("noise.") and key[-1].isdigit()]
        assert sorted(kept) == sorted(2 * shapes)
        for begun in (3, 4):
            alone, shared = (
                run(workers=workers, correlate=way, saved=replace(_saved(place / name), steps_begun=begun))[0]
                for workers in (ALONE, together)
            )
            require_close(alone, shared)
            lost = max(float((alone[each] - expected[each]).abs().max()) for each in alone) > 1e-3
            assert lost is (begun == 4)


def _saved(folder: Path) -> SavedState:
    _, saved = RunFolder.resume(folder, {})
    assert saved is not None
    return saved


def same_users(model: Path, together: Workers, _: Path) -> None:
    """A user's mean gradient is clipped in the process that has the user, whatever number of records others have."""
    run = partial(trained, model, method="dp-sgd", optimizer=Optimizer.SGD)
    expected, alone = run(workers=ALONE, per_draw=2)
    single, _ = run(workers=ALONE)
    assert max(float((expected[each] - single[each]).abs().max()) for each in single) > 1e-3
    for passes in (1, 2):
        found, shared = run(workers=together, per_draw=2, passes=passes)
        require_close(found, expected)
        assert alone is not None
        assert shared is not None
        if together.is_main:
            zeroed = [[entry.get("zeroed_fraction") for entry in run.history] for run in (alone, shared)]
            assert zeroed[0] == zeroed[1]
            assert any(zeroed[0])


def same_canaries(model: Path, together: Workers, place: Path) -> None:
    """Canaries are mixed in and seen where they lie, whoever holds that, before and after an interruption."""

    def run(workers: Workers, **more: Any) -> tuple[GradientCanaries, dict[str, Tensor]]:
        drawn: list[GradientCanaries] = []

        def draw(network: nn.Module, recipe: TrainingSettings) -> GradientCanaries:
            drawn.append(GradientCanaries(200, list(network.parameters()), recipe, bytes(32), workers))
            return drawn[0]

        weights, _ = trained(model, workers, "dp-sgd", optimizer=Optimizer.SGD, canaries=draw, **more)
        return drawn[0], weights

    alone, expected = run(ALONE)
    shared, found = run(together)
    require_close(expected, found)
    assert 50 < alone.included.sum() < 150
    assert np.array_equal(alone.included, shared.included)
    assert np.allclose(alone.every_step, shared.every_step, atol=1e-4)
    ends = [
        each.end([nn.Parameter(p) for p in weights.values()]) for each, weights in ((alone, expected), (shared, found))
    ]
    assert np.allclose(*ends, atol=1e-5)
    assert alone.every_step[alone.included].mean() > alone.every_step[~alone.included].mean() + 1
    folder = RunFolder.begin(place / "canaries", {}) if together.is_main else None
    half, _ = run(together, folder=folder, stop=3)
    together.barrier()
    again, _ = run(together, saved=replace(_saved(place / "canaries"), steps_begun=len(STEPS)))
    assert np.array_equal(again.every_step, half.every_step)
    assert np.array_equal(again.included, half.included)


CHECKS = {check.__name__: check for check in (same_correlated_noise, same_users, same_canaries)}


def main(arguments: Sequence[str]) -> None:
    model, place, *names = arguments
    torch.set_num_threads(1)
    with start_workers(CPU) as workers:
        for name in names:
            CHECKS[name](Path(model), replace(workers, lockstep=True), Path(place))


if __name__ == "__main__":
    main(sys.argv[1:])
