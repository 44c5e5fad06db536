"""The guarantee of ``--release gaussian`` from outside: a canary in the real loop, and what its steps give away.

Each step is a run by itself, of which an attacker sees the published value along the canary's direction; bounds are
those of ``tests.train.runs.test_guarantee``. Losses are linear, so weights do not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.sign_bits import gaussian_ledger
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.directional import FiredGroup
from privctl.train.methods.ferret.amounts import Direction, PrivateExamples
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.publish import NoisySums
from privctl.train.methods.ferret.settings import Publish
from privctl.train.methods.ferret.trainer import FerretTrainer
from privctl.train.methods.ferret.update import UpdateRule
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.sampling import PoissonBatches
from tests.train.methods.ferret.support import CPU
from tests.train.runs.test_guarantee import ALPHA, DELTA, EPSILON, RECORDS, certified_epsilon, records
from tests.train.steps.test_loop import Points

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = 30


class Linear:
    """Derivatives of <w, x>: those of each example are its row's part along u."""

    def batch(
        self, losses_of: Callable[[], Tensor], fired: Sequence[FiredGroup], directions: Sequence[Direction]
    ) -> Tensor:
        return self.per_example(losses_of, fired, directions).sum(0)

    def per_example(
        self, losses_of: Callable[[], Tensor], fired: Sequence[FiredGroup], directions: Sequence[Direction]
    ) -> Tensor:
        rows = losses_of.args[0]["rows"]  # type: ignore[attr-defined]
        return torch.stack([rows.double() @ u["weight"][0].double() for u in directions], dim=1)


@functools.cache
def noise() -> float:
    """The multiplier that meets the budget with one step of half the records."""
    return noise_multiplier_for(EPSILON, DELTA, lambda sigma: gaussian_ledger({1: 1}, sigma, BATCH / RECORDS))


def scores(rows: Tensor, publisher: NoisySums, seed: int, runs: int) -> NDArray[np.float64]:
    """The published value of each step, turned so that the canary moves it up."""
    network = nn.Linear(2, 1, bias=False)
    recipe = TrainingSettings(
        method="ferret", steps=runs, batch_size=BATCH, sample_rate=BATCH / RECORDS, learning_rate=1e-6
    )
    losses: list[float] = []
    source = PrivateExamples(
        network=network,
        task=Points(rows),
        dimensions=[2],
        recipe=recipe,
        batches=PoissonBatches(len(rows), recipe.sample_rate, NoiseSource(seed)),
        engine=Linear(),
        publisher=replace(publisher, source=NoiseSource(seed + 1)),
        workers=Workers(),
        device=CPU,
    )
    training = FerretTrainer(
        network=network,
        groups=(("weight",),),
        masks=Masks(seed=b"seed", groups=1, fire_probability=1.0, steps=runs),
        rule=UpdateRule(steps=runs, learning_rate=1e-6),
        source=source,
        epoch_steps=runs,
        device=CPU,
    )
    ask = source.amounts

    def noted(step: int, fired: Sequence[FiredGroup], directions: Sequence[Direction]) -> Tensor:
        found = ask(step, fired, directions)
        losses.append(float(found[0] * directions[0]["weight"][0, 1].sign()))
        return found

    training.source = type("Noted", (), {"amounts": staticmethod(noted)})()
    training.run()
    return np.asarray(losses)


def measured(publisher: NoisySums, runs: int) -> float:
    rows = records()
    present, absent = scores(rows, publisher, 10, runs), scores(rows[:-1], publisher, 20, runs)
    return certified_epsilon(present, absent, DELTA, ALPHA)


def honest(noise_multiplier: float) -> NoisySums:
    return NoisySums(
        noise_multiplier=noise_multiplier, clip_norm=0.5, batch_size=BATCH, shown=Publish.VALUE, source=NoiseSource()
    )


def test_nobody_can_show_more_than_is_claimed() -> None:
    # An honest run fails with probability ALPHA at most, however many there are; a quarter of the noise shows in 500.
    assert measured(honest(noise()), 500) < EPSILON


@pytest.mark.slow
def test_many_runs_show_a_part_of_what_is_claimed() -> None:
    assert 0 < measured(honest(noise()), 3000) < EPSILON


# With fresh seeds, a quarter of the noise shows in 500 steps with probability above 0.95: the law is that of
# ``tests.train.runs.test_guarantee``. ``test_publish`` finds half of it in quick tests.
@pytest.mark.slow
@pytest.mark.parametrize(("part", "runs"), [pytest.param(2, 3000, marks=pytest.mark.slow), (4, 1000)])
def test_too_little_noise_is_found(part: int, runs: int) -> None:
    assert measured(honest(noise() / part), runs) > EPSILON


def test_a_derivative_that_is_not_clipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "privctl.train.methods.ferret.amounts.clipped", lambda vectors, norm: (vectors.sum(0), vectors.norm(dim=1))
    )
    assert measured(honest(noise()), 400) > EPSILON
