"""Public records in the loop: what is added, to what, and what it must not touch."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.verdict import curves
from audits.claims import CurveClaim, with_half_noise
from privctl.accounting.profile import profile
from privctl.domain.errors import InputError, RunInterruptedError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.verdict import Outcome
from privctl.randomness import NoiseSource
from privctl.train.settings.adaptive_clipping import AdaptiveClipping
from privctl.train.settings.public_mixing import PublicMixing
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.loop import FinishedRun, Trainer
from privctl.train.steps.public_gradients import PublicRecords
from privctl.train.steps.sampling import Passes, PoissonBatches, PublicBatches
from tests.train.steps.test_loop import ROWS, Points, recipe, trainer, weight

#: Longer than the clip norm by far, so that a clipped sum of them would show.
PUBLIC = torch.tensor([[30.0, 0.0, 1.0], [0.0, -20.0, 2.0], [7.0, 7.0, 3.0], [1.0, 1.0, 4.0], [-5.0, 9.0, 5.0]])
WEIGHT, SIZE, SEED = 0.25, 2, 11


def private(steps: int = 6, **changes: Any) -> TrainingSettings:
    return recipe(method="dp-sgd", steps=steps, noise_multiplier=0.8, **{"sample_rate": 0.5, **changes})


def mixed(plan: TrainingSettings, rows: Tensor = PUBLIC, weighted: float = WEIGHT, **changes: Any) -> Trainer:
    """A private training with the public ``rows``."""
    mixing = PublicMixing(weight=weighted, batch_size=SIZE, records=len(rows))
    public = PublicRecords(task=Points(rows), batches=PublicBatches(len(rows), SIZE, SEED), weight=weighted)
    return trainer(ROWS, replace(plan, public=mixing), PoissonBatches(4, 0.5, NoiseSource(3)), public=public, **changes)


def alone(plan: TrainingSettings, **changes: Any) -> Trainer:
    """The same training without them: the same batches and noise."""
    return trainer(ROWS, plan, PoissonBatches(4, 0.5, NoiseSource(3)), **changes)


def means(steps: int) -> Tensor:
    """The mean public row of each step (steps, 3), which is its gradient, by a loop of its own."""
    order: list[int] = []
    for a_pass in range(steps):
        order += np.random.default_rng((SEED, a_pass, 0x7075_626C)).permutation(5).tolist()[:4]
    return torch.stack([(PUBLIC[order[2 * t]] + PUBLIC[order[2 * t + 1]]) / 2 for t in range(steps)])


@pytest.mark.parametrize("micro", [1, 64])
def test_a_step_is_the_private_one_and_the_weighted_mean_of_public_gradients(micro: int) -> None:
    plan = private(micro_examples=micro)
    apart, together = alone(plan), mixed(plan)
    apart.run()
    together.run()
    expected = weight(apart) - 0.1 * WEIGHT * means(6).sum(0)  # losses are linear: no gradient depends on the weights
    assert torch.allclose(weight(together), expected, rtol=1e-5, atol=1e-6)
    assert float((weight(together) - weight(apart)).norm()) > 0.1


def test_public_records_count_in_no_norm_and_no_clip_norm() -> None:
    plan = private(adaptive=AdaptiveClipping(quantile=0.5, learning_rate=0.5, count_stddev=1.0))
    apart, together = alone(plan).run(), mixed(plan).run()
    assert apart.clip_norms == together.clip_norms
    assert len(set(apart.clip_norms)) > 2
    assert apart.released == together.released
    for before, after in zip(apart.history, together.history, strict=True):
        assert {name: value for name, value in after.items() if name not in ("public_loss", "training_loss")} == {
            name: value for name, value in before.items() if name != "training_loss"
        }
        assert math.isfinite(after["public_loss"])


def test_a_run_in_two_parts_is_the_run_in_one(tmp_path: Path) -> None:
    """Stopped within an epoch; batches of public records and what was measured of them go on."""
    plan = private(steps=7, sample_rate=0.25)
    whole = mixed(plan)
    entire = whole.run()
    begun = RunFolder.begin(tmp_path / "run", {})
    first = mixed(plan, folder=begun)
    steps: list[int] = []
    first.advance = lambda _: steps.append(1)
    with begun, pytest.raises(RunInterruptedError):
        first.run(stop=lambda: len(steps) == 2)
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert saved.steps_begun == 3
    second = mixed(plan, folder=folder)
    with folder or nullcontext():
        rest = second.run(saved)
    assert torch.equal(weight(second), weight(whole))
    assert rest.history == entire.history


def test_a_public_record_without_a_finite_loss_ends_the_run() -> None:
    rows = PUBLIC.clone()
    rows[3, 1] = math.nan
    with pytest.raises(InputError, match=r"loss of public records is not finite.*--public-weight"):
        mixed(private(), rows).run()


def test_batches_are_a_function_of_seed_and_step() -> None:
    drawn = [PublicBatches(10, 4, 7).batch(step) for step in range(40)]
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        assert len({*first.tolist(), *second.tolist()}) == 8, "a pass takes nobody twice"
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert (counts.sum(), len(counts)) == (160, 10)
    assert (counts > 8).all(), "what a pass leaves over is not always the same"
    assert all((a == PublicBatches(10, 4, 7).batch(i)).all() for i, a in enumerate(drawn))
    assert any((a != PublicBatches(10, 4, 8).batch(i)).any() for i, a in enumerate(drawn))
    assert any((a != Passes(10, 4, 7).batch(i * 3 // 2)).any() for i, a in enumerate(drawn) if i % 2 == 0)
    with pytest.raises(ValueError, match="size is 3"):
        PublicBatches(3, 4, 7)


class _Less:
    """A ``share`` of the stated noise."""

    description, cryptographic = "less", False

    def __init__(self, share: float) -> None:
        self.share, self.noise = share, KeyedNoise(NoiseSource(5))

    def release(self, tensors: Any, stddev: float, step: int) -> None:
        self.noise.release(tensors, self.share * stddev, step)


def observed(share: float, count: int, weighted: float) -> Outcome:
    """The verdict on the mechanism after a training with canaries and public records."""
    # Epsilon 2.0 at delta 1e-5, by the accountant.
    plan = TrainingSettings(
        method="dp-sgd", steps=40, batch_size=20, sample_rate=0.1, learning_rate=0.1, noise_multiplier=1.632,
        public=PublicMixing(weight=weighted, batch_size=1, records=1),
    )  # fmt: skip
    ledger = Ledger(events=(SampledGaussian(noise_multiplier=1.632, sample_rate=0.1, steps=40),))
    network = nn.Linear(count + 1, 1, bias=False)
    canaries = GradientCanaries(count, list(network.parameters()), plan)
    rows = torch.full((1, count + 1), 100.0)
    training = Trainer(
        network=network, task=Points(torch.zeros(4, count + 1)), recipe=plan, clipping=None,
        batches=PoissonBatches(4, 0.0, NoiseSource(1)), noise=_Less(share), workers=mixed(private()).workers,
        device=torch.device("cpu"), canaries=canaries,
        public=PublicRecords(task=Points(rows), batches=PublicBatches(1, 1, 0), weight=weighted),
    )  # fmt: skip
    finished: FinishedRun = training.run()
    assert finished.steps_begun == 40
    found = bounds_of(
        register([1] * count), canaries.every_step, np.ones(count, np.bool_), canaries.included, 1e-5, 0.0125
    )
    claim = CurveClaim(mechanism=ledger, points=profile(ledger), source="m", half=profile(with_half_noise(ledger)))
    (verdict,) = curves(found, claim)
    return verdict.outcome


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_half_of_the_noise_is_noticed_beside_public_records(share: float) -> None:
    """An attacker knows the public gradient, and takes it away: canaries see what was released before it was added."""
    assert (observed(share, 20_001, 3.0) is Outcome.REFUTED) is (share < 1)
