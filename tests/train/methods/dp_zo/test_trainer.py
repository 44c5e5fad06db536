"""The steps of DP-ZO: what one example adds, what is released, how the weights move, and going on after a stop."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import RunInterruptedError
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.methods.dp_zo.differences import LossDifferences
from privctl.train.methods.dp_zo.grid import MovableWeights
from privctl.train.methods.dp_zo.trainer import ZerothOrderTrainer
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.gradient_noise import GradientNoise, KeyedNoise
from privctl.train.steps.saved_state import SavedState
from tests.forked import Forked
from tests.train.methods.ferret.support import BATCH, CPU, EXAMPLES, Points, network, rows

SEED, STEP_SIZE = b"public", 1e-3


class Batched:
    """A batch of five for each step, in turn."""

    def batch(self, step: int) -> np.ndarray:
        return np.arange(BATCH) + BATCH * (step % (EXAMPLES // BATCH))


@dataclass
class Noiseless:
    """Adds nothing, and remembers what it was asked for."""

    asked: list[tuple[list[float], float, int]] = field(default_factory=list)
    description: str = "none"
    cryptographic: bool = False

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        for tensor in tensors:
            self.asked.append((tensor.tolist(), stddev, step))


@dataclass
class Kept:
    """The state of a run, in memory."""

    path: Path = Path("run")
    begun: int = 0
    saved: SavedState | None = None

    def mark(self, begun: int) -> None:
        self.begun = begun

    def mark_side_releases(self, begun: int) -> None:
        raise AssertionError

    def save(self, saved: SavedState) -> None:
        tensors = {name: tensor.clone() for name, tensor in saved.tensors.items()}
        self.saved = SavedState(
            updates=saved.updates, steps_begun=saved.steps_begun, tensors=tensors, history=saved.history
        )


def differences(
    held: nn.Module, points: Tensor, *, directions: int = 1, clip_norm: float = 1.0, size: float = STEP_SIZE
) -> LossDifferences:
    weights = MovableWeights(dict(held.named_parameters()), SEED, size)
    weights.onto_grid()
    return LossDifferences(
        network=held, task=Points(points), weights=weights, directions=directions, perturbation=size,
        clip_norm=clip_norm, device=CPU,
    )  # fmt: skip


def trainer(
    steps: int,
    *,
    noise: GradientNoise,
    directions: int = 1,
    clip_norm: float = 1.0,
    points: Tensor | None = None,
    workers: Workers | None = None,
    rate: float = 0.05,
) -> ZerothOrderTrainer:
    held = network()
    recipe = TrainingSettings(
        method="dp-zo", steps=steps, batch_size=float(BATCH), sample_rate=BATCH / EXAMPLES, learning_rate=rate,
        clip_norm=clip_norm, noise_multiplier=2.0,
    )  # fmt: skip
    found = differences(held, rows() if points is None else points, directions=directions, clip_norm=clip_norm)
    return ZerothOrderTrainer(
        network=held, recipe=recipe, differences=found, batches=Batched(), noise=noise, workers=workers or Workers()
    )


def flat(held: nn.Module) -> Tensor:
    return torch.cat([p.detach().view(-1) for p in held.parameters()])


def signs_of(held: nn.Module, step: int, number: int) -> Tensor:
    """The direction in the order of ``flat``."""
    from privctl.train.directional import direction

    shapes = {name: p.shape for name, p in held.named_parameters()}
    made = direction(SEED, step, number, shapes)
    return torch.cat([made[name].sign().view(-1) for name in shapes])


def gradients(held: nn.Module, points: Tensor) -> Tensor:
    """Each example's gradient (n, d), by autograd."""
    task, found = Points(points), []
    for example in range(len(points)):
        held.zero_grad()
        task.losses(held, task.batch([example], CPU, 0)).sum().backward()
        found.append(torch.cat([p.grad.view(-1) for p in held.parameters() if p.grad is not None]))
    held.zero_grad(set_to_none=True)
    return torch.stack(found)


def test_differences_are_derivatives_along_the_signs() -> None:
    held, points = network(), rows()
    found = differences(held, points, directions=3, clip_norm=1e6)
    before = flat(held)
    sums = found.sums(range(len(points)), 4, EpochStats())
    assert torch.equal(flat(held), before)
    slopes = gradients(held, points)
    for number in range(3):
        expected = float((slopes @ signs_of(held, 4, number)).sum())
        # The margin for rounding takes nothing off what is not clipped.
        assert float(sums[number]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_all_of_an_examples_differences_share_the_clip_norm() -> None:
    held, points = network(), rows()
    tally = EpochStats()
    found = differences(held, points, directions=4, clip_norm=0.5)
    for example in range(len(points)):
        one = found.sums([example], 0, tally)
        norm, clipped = float(tally.norms[-1]), float(torch.linalg.vector_norm(one))
        assert clipped == pytest.approx(min(norm, 0.5 * (1 - 2.0**-10)), rel=1e-9)
    norms = torch.cat(tally.norms)
    assert float(norms.max()) > 0.5 > float(norms.min()), "some are clipped, and some are not"


@pytest.mark.parametrize("hostile", [1e4, 1e18, 1e25, math.inf, math.nan])
def test_a_record_moves_the_sum_by_the_clip_norm_and_no_other_by_a_bit(hostile: float) -> None:
    held = network()
    points = torch.cat([rows(), torch.full((1, 4), hostile)])
    found, tally = differences(held, points, directions=2), EpochStats()
    alone = [found.sums([example], 0, tally) for example in range(EXAMPLES)]
    again = [found.sums([EXAMPLES, example], 0, tally) - found.sums([EXAMPLES], 0, tally) for example in (0, 7)]
    assert torch.allclose(torch.stack(again), torch.stack([alone[0], alone[7]]), rtol=0, atol=1e-15)
    without = found.sums(range(EXAMPLES), 0, tally)
    with_it = found.sums(range(EXAMPLES + 1), 0, tally)
    assert torch.isfinite(with_it).all()
    assert float(torch.linalg.vector_norm(with_it - without)) <= 1.0
    if not math.isfinite(hostile):
        assert torch.equal(with_it, without)
        assert tally.zeroed


def test_records_rounded_together_would_move_one_another() -> None:
    """The fault that going through the network alone prevents: losses of a batch, of another shape, round otherwise."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(3, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    task = Points(points)
    with torch.no_grad():
        together = task.losses(wide, task.batch(range(64), CPU, 0))
        alone = torch.cat([task.losses(wide, task.batch([i], CPU, 0)) for i in range(64)])
    assert not torch.equal(together, alone)


def test_a_step_is_the_one_computed_by_hand() -> None:
    noise = Noiseless()
    training = trainer(2, noise=noise, directions=2, clip_norm=0.7, rate=0.05)
    before, points = flat(training.network).double(), rows()
    slopes = gradients(training.network, points[:BATCH]).double()
    signs = torch.stack([signs_of(training.network, 0, number).double() for number in range(2)])
    vectors = slopes @ signs.T
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    total = (vectors * (0.7 * (1 - 2.0**-10) / norms).clamp(max=1)).sum(0)
    training.recipe = TrainingSettings(
        method="dp-zo", steps=1, batch_size=float(BATCH), sample_rate=BATCH / EXAMPLES, learning_rate=0.05,
        clip_norm=0.7, noise_multiplier=2.0, weight_decay=0.1,
    )  # fmt: skip
    finished = training.run()
    expected = before * (1 - 0.05 * 0.1) - 0.05 * (total / BATCH / 2) @ signs
    assert torch.allclose(flat(training.network).double(), expected, rtol=1e-4, atol=2e-6)
    ((released, stddev, step),) = noise.asked
    assert released == pytest.approx(total.tolist(), rel=1e-3)
    assert (stddev, step) == (pytest.approx(2.0 * 0.7), 0)
    assert (finished.released, finished.steps_begun, finished.updates) == (2, 1, 1)


@dataclass
class Halved:
    """A planted fault: half the noise."""

    inner: KeyedNoise = field(default_factory=lambda: KeyedNoise(NoiseSource()))
    description: str = ""
    cryptographic: bool = True

    def release(self, tensors: Iterable[Tensor], stddev: float, step: int) -> None:
        self.inner.release(tensors, stddev / 2, step)


@pytest.mark.parametrize(("noise", "right"), [(None, True), (Halved(), False)])
def test_the_noise_in_the_weights_is_what_is_stated(noise: GradientNoise | None, right: bool) -> None:
    """Of records without a gradient: each step's number is noise alone, and the weights show it along the direction."""
    steps, noise = 100, noise or KeyedNoise(NoiseSource())
    training = trainer(steps, noise=noise, points=torch.zeros(EXAMPLES, 4), clip_norm=0.5, rate=1e-3)
    with torch.no_grad():
        for parameter in training.network.parameters():
            parameter.zero_()
    numbers: list[float] = []
    places = [flat(training.network).double()]

    def look(held: nn.Module) -> dict[str, float]:
        return {}

    training.evaluate = look
    training.advance = lambda _: places.append(flat(training.network).double())
    training.run()
    for step, (before, after) in enumerate(itertools.pairwise(places)):
        signs = signs_of(training.network, step, 0).double()
        numbers.append(float((before - after) @ signs / len(signs)) * BATCH / 1e-3)
    assert len(numbers) == steps
    deviation, stated = float(np.std(numbers)), 2.0 * 0.5
    assert (abs(deviation - stated) < 5 * stated / math.sqrt(2 * steps)) is right


def test_a_stopped_run_goes_on_to_the_same_weights() -> None:
    whole = trainer(8, noise=Noiseless(), directions=2)
    whole.run()
    first, kept = trainer(8, noise=Noiseless(), directions=2), Kept()
    first.folder = kept
    calls = iter([False, False, True])
    with pytest.raises(RunInterruptedError, match="after step 3 of 8"):
        first.run(stop=lambda: next(calls))
    second = trainer(8, noise=Noiseless(), directions=2)
    finished = second.run(kept.saved)
    assert torch.equal(flat(second.network), flat(whole.network))
    assert (finished.steps_begun, finished.released) == (8, 16)


def test_a_step_that_was_begun_and_lost_counts_and_its_directions_are_not_drawn_again() -> None:
    noise = Noiseless()
    training = trainer(8, noise=noise)
    finished = training.run(SavedState(updates=3, steps_begun=5, tensors={}))
    assert [step for _, _, step in noise.asked] == [5, 6, 7]
    assert (finished.updates, finished.steps_begun, finished.released) == (6, 8, 8)


SCRIPT = """
import json, torch
from privctl.parallel import start_workers
from tests.train.methods.dp_zo.test_trainer import Noiseless, flat, trainer

torch.set_num_threads(1)
with start_workers(torch.device("cpu")) as workers:
    noise = Noiseless()
    made = trainer(6, noise=noise, directions=3, workers=workers)
    made.run()
    mine = flat(made.network)
    same = mine.clone()
    workers.all_reduce([same])
    assert torch.equal(same, workers.size * mine), "the processes' weights differ"
    if workers.is_main:
        print(json.dumps([mine.tolist(), len(noise.asked)]), flush=True)
    else:
        assert not noise.asked
"""


def test_two_processes_do_what_one_does(tmp_path: Path, forked: Forked) -> None:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    ended: Sequence = forked.together(2, [], script=str(script))
    for process in ended:
        assert process.code == 0, process.errors[-2000:]
    found, releases = json.loads(ended[0].out)
    one = trainer(6, noise=Noiseless(), directions=3)
    one.run()
    assert torch.allclose(torch.tensor(found), flat(one.network), rtol=0, atol=1e-6)
    assert releases == 6
