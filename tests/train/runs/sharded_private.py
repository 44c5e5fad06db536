"""What private steps need beyond sums of clipped gradients, in shards; run in each of several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from privctl.accounting.banded import banded_coefficients
from privctl.accounting.buffered import BufferedMatrix
from privctl.domain.mechanism import Optimizer
from privctl.parallel import Workers
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import GradientNoise
from privctl.train.steps.saved_state import SavedState
from privctl.train.steps.step_noise import correlated
from tests.train.runs.sharded import trained
from tests.train.runs.sharded_parts import STEPS, require_close, run_checks, start

ALONE = Workers()
BUFFERS = BufferedMatrix(first=0.7, weights=(0.2, 0.1), decays=(0.9, 0.4))
#: Either keeps two tensors of noise for each parameter after two steps.
WAYS: dict[str, Callable[[GradientNoise], GradientNoise]] = {
    "bands": lambda noise: correlated(noise, banded_coefficients(3, len(STEPS))),
    "buffers": lambda noise: correlated(noise, None, BUFFERS),
}

LAWS: dict[str, dict[str, Any]] = {
    "bands": {"coefficients": banded_coefficients(3, len(STEPS))}, "buffers": {"matrix": BUFFERS}
}  # fmt: skip


def same_correlated_noise(kind: str, model: Path, together: Workers, place: Path) -> None:
    """Each process keeps its shards' earlier noise, saves it with the rest, and takes its part of what was saved."""
    folder, correlate = place / kind, WAYS[kind]
    kept_in = RunFolder.begin(folder, {}) if together.is_main else None
    trained(model, together, "dp-sgd", optimizer=Optimizer.SGD, correlate=correlate, folder=kept_in, stop=3)
    together.barrier()
    saved = _saved(folder)
    kept = [each.shape for key, each in saved.tensors.items() if key.startswith("noise.") and key[-1].isdigit()]
    assert sorted(kept) == sorted(2 * [p.shape for p in start(model)[0].parameters()])
    found, _ = trained(model, together, "dp-sgd", optimizer=Optimizer.SGD, correlate=correlate, saved=saved)
    if together.is_main:
        expected, _ = trained(model, ALONE, "dp-sgd", optimizer=Optimizer.SGD, correlate=correlate)
        require_close(expected, found)
        plain, _ = trained(model, ALONE, "dp-sgd", optimizer=Optimizer.SGD)
        require_apart(expected, plain)


def same_without_lost_noise(model: Path, together: Workers, place: Path) -> None:
    """What a step that began and was lost would have left is missing in all shards; one process may go on, too."""
    folder = RunFolder.begin(place / "lost", {}) if together.is_main else None
    trained(model, together, "dp-sgd", optimizer=Optimizer.SGD, correlate=WAYS["bands"], folder=folder, stop=3)
    together.barrier()
    ends = {}
    for begun, workers in ((3, ALONE), (4, ALONE), (4, together)):
        saved = replace(_saved(place / "lost"), steps_begun=begun)
        found, _ = trained(model, workers, "dp-sgd", optimizer=Optimizer.SGD, correlate=WAYS["bands"], saved=saved)
        ends[begun, workers.size > 1] = found
    require_close(ends[4, False], ends[4, True])
    require_apart(ends[4, False], ends[3, False])


def require_apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert max(float((one[each] - other[each]).abs().max()) for each in one) > 1e-3


def _saved(folder: Path) -> SavedState:
    _, saved = RunFolder.resume(folder, {})
    assert saved is not None
    return saved


def same_users(model: Path, together: Workers, _: Path) -> None:
    """A user's mean gradient is clipped in the process that has the user, whatever number of records others have."""
    found, shared = trained(model, together, "dp-sgd", optimizer=Optimizer.SGD, per_draw=2)
    if together.is_main:
        expected, alone = trained(model, ALONE, "dp-sgd", optimizer=Optimizer.SGD, per_draw=2)
        require_close(found, expected)
        assert alone is not None
        assert shared is not None
        zeroed = [[entry.get("zeroed_fraction") for entry in run.history] for run in (alone, shared)]
        assert zeroed[0] == zeroed[1]
        assert any(zeroed[0])


def same_users_in_two_passes(model: Path, together: Workers, _: Path) -> None:
    once, twice = (trained(model, together, "dp-sgd", per_draw=2, passes=passes)[0] for passes in (1, 2))
    require_close(once, twice)


def same_canaries(kind: str, model: Path, together: Workers, place: Path) -> None:
    """Canaries are mixed in and seen where they lie, whoever holds that, before and after an interruption."""
    correlate, law = (WAYS[kind], LAWS[kind]) if kind else (lambda noise: noise, {})

    def run(workers: Workers, **more: Any) -> tuple[GradientCanaries, dict[str, Tensor]]:
        drawn: list[GradientCanaries] = []

        def draw(network: nn.Module, recipe: TrainingSettings) -> GradientCanaries:
            recipe = replace(recipe, **law)
            drawn.append(GradientCanaries(200, list(network.parameters()), recipe, bytes(32), workers))
            return drawn[0]

        usual: dict[str, Any] = {"optimizer": Optimizer.SGD, "correlate": correlate}
        weights, _ = trained(model, workers, "dp-sgd", canaries=draw, **usual, **more)
        return drawn[0], weights

    shared, found = run(together)
    if together.is_main:
        alone, expected = run(ALONE)
        require_close(expected, found)
        assert 50 < alone.included.sum() < 150
        assert np.array_equal(alone.included, shared.included)
        assert np.allclose(alone.every_step, shared.every_step, atol=1e-4)
        assert alone.every_step[alone.included].mean() > alone.every_step[~alone.included].mean() + 1
        ends = [
            each.end([nn.Parameter(p) for p in weights.values()])
            for each, weights in ((alone, expected), (shared, found))
        ]
        assert np.allclose(*ends, atol=1e-5)
    folder = RunFolder.begin(place / f"canaries{kind}", {}) if together.is_main else None
    half, _ = run(together, folder=folder, stop=3)
    together.barrier()
    again, _ = run(together, saved=replace(_saved(place / f"canaries{kind}"), steps_begun=len(STEPS)))
    assert np.array_equal(again.every_step, half.every_step)
    assert np.array_equal(again.included, half.included)


CHECKS: dict[str, Callable[[Path, Workers, Path], None]] = {
    "same_banded_noise": partial(same_correlated_noise, "bands"),
    "same_buffered_noise": partial(same_correlated_noise, "buffers"),
    "same_without_lost_noise": same_without_lost_noise,
    "same_users": same_users,
    "same_users_in_two_passes": same_users_in_two_passes,
    "same_canaries": partial(same_canaries, ""),
    "same_canaries_in_bands": partial(same_canaries, "bands"),
    "same_canaries_in_buffers": partial(same_canaries, "buffers"),
}
#: What all runs of the tests check; the rest repeats it in other ways.
QUICK = ("same_banded_noise", "same_users")


if __name__ == "__main__":
    run_checks(CHECKS, sys.argv[1:])
