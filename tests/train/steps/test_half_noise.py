"""Canary gradients in trainings of every kind: an honest one passes, and one with half of its noise is refuted.

So is a ledger that leaves out that a user has several records, or that a record comes in several passes. What it costs
that a record may push another out of its batch is too little to be noticed when it is left out.

No training draws noise along a tree. Zeroth-order steps release one number a direction, in which canaries would add
up: ``tests/train/methods/dp_zo`` finds half of their noise otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.verdict import curves
from audits.claims import CurveClaim, with_half_noise
from privctl.accounting.banded import banded_coefficients
from privctl.accounting.buffered import BufferedMatrix
from privctl.accounting.profile import profile
from privctl.domain.events import (
    BandedGaussian,
    Batches,
    BufferedGaussian,
    Event,
    GroupGaussian,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.verdict import Outcome
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.settings.adaptive_clipping import AdaptiveClipping
from privctl.train.settings.public_mixing import PublicMixing
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.public_gradients import PublicRecords
from privctl.train.steps.sampling import BatchSource, PoissonBatches, PublicBatches, TruncatedPoisson
from privctl.train.steps.step_noise import correlated
from tests.train.steps.test_loop import Points

COUNT, BANDS, STEPS = 30_001, 3, 42
DELTA, LEVEL = 1e-5, 0.0125
BAND = banded_coefficients(BANDS, STEPS)
BUFFERS = BufferedMatrix(first=0.9, weights=(0.2,), decays=(0.5,))
#: Steps after which a pass begins anew, in which a record with buffers is used once.
PASS = 14


class Less:
    """A ``share`` of the stated noise."""

    description, cryptographic = "less", False

    def __init__(self, share: float, seed: int = 5) -> None:
        self.share, self.noise = share, KeyedNoise(NoiseSource(seed))

    def release(self, tensors: Any, stddev: float, step: int) -> None:
        self.noise.release(tensors, self.share * stddev, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of training: its ledger, and what its recipe has besides; ``forgotten`` is a ledger without some price."""

    event: Event
    noise: float
    more: dict[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    forgotten: Event | None = None


#: Everybody takes part in each step, which tells an audit most.
EVERYBODY = SampledGaussian(noise_multiplier=6.5, steps=STEPS)


KINDS = {
    "adaptive clipping": Kind(
        event=EVERYBODY, noise=6.5,
        more={"adaptive": AdaptiveClipping(quantile=0.5, learning_rate=0.2, count_stddev=20.0)},
    ),
    "batches that are cut": Kind(
        event=TruncatedGaussian(noise_multiplier=8.0, largest_batch=10, examples=20, sample_rate=0.5, steps=STEPS),
        noise=8.0, more={"largest_batch": 10}, rate=0.5,
    ),
    "users": Kind(
        event=GroupGaussian(noise_multiplier=7.0, group_size=3, sample_rate=0.3, steps=STEPS),
        noise=7.0, more={"group": 3}, rate=0.3,
        forgotten=SampledGaussian(noise_multiplier=7.0, sample_rate=0.3, steps=STEPS),
    ),
    "balls and bins": Kind(
        event=SampledGaussian(
            noise_multiplier=2.0, sample_rate=1 / 3, steps=STEPS, batches=Batches.BALLS_AND_BINS
        ),
        noise=2.0, more={"batches": Batches.BALLS_AND_BINS}, rate=1 / 3,
    ),
    "public records": Kind(
        event=EVERYBODY, noise=6.5, more={"public": PublicMixing(weight=3.0, batch_size=1, records=1)}
    ),
    "bands": Kind(
        event=BandedGaussian(noise_multiplier=3.5, coefficients=BAND, sample_rate=0.3, steps=STEPS),
        noise=3.5, more={"coefficients": BAND}, rate=0.3,
    ),
    "buffers": Kind(
        event=BufferedGaussian(
            noise_multiplier=1.5, first=BUFFERS.first, weights=BUFFERS.weights, decays=BUFFERS.decays,
            sample_rate=1 / PASS, steps=STEPS,
        ),
        noise=1.5, more={"matrix": BUFFERS}, rate=1 / PASS,
        # As if a record was used in one pass alone.
        forgotten=BufferedGaussian(
            noise_multiplier=1.5, first=BUFFERS.first, weights=BUFFERS.weights, decays=BUFFERS.decays,
            sample_rate=1 / STEPS, steps=STEPS,
        ),
    ),
}  # fmt: skip
QUICK = ("adaptive clipping", "bands", "buffers", "users", "batches that are cut")


def run_of(kind: Kind, share: float = 1.0, count: int = COUNT, seed: int = 5) -> tuple[Trainer, GradientCanaries]:
    """A training on points of 0, with a ``share`` of its noise, and its canaries."""
    plan = TrainingSettings(
        method="dp-sgd", steps=STEPS, batch_size=20, sample_rate=kind.rate, learning_rate=0.1,
        noise_multiplier=kind.noise, **kind.more,
    )  # fmt: skip
    network = nn.Linear(count + 1, 1, bias=False)
    canaries = GradientCanaries(count, list(network.parameters()), plan)
    rows = torch.full((1, count + 1), 100.0)
    public = PublicRecords(task=Points(rows), batches=PublicBatches(1, 1, 0), weight=3.0) if plan.public else None
    source, size = NoiseSource(1), 4
    batches: BatchSource = PoissonBatches(size, 0.0, source)
    if isinstance(kind.event, TruncatedGaussian):
        size = kind.event.examples
        batches = TruncatedPoisson(size, kind.rate, kind.event.largest_batch, source)
    training = Trainer(
        network=network, task=Points(torch.zeros(size, count + 1)), recipe=plan, clipping=None, batches=batches,
        noise=correlated(Less(share, seed), plan.coefficients, plan.matrix), workers=Workers(),
        device=torch.device("cpu"), canaries=canaries, public=public,
    )  # fmt: skip
    return training, canaries


def observed(kind: Kind, share: float) -> list[Outcome]:
    """The verdicts on the mechanism after a training with canaries and a ``share`` of its noise, and on what forgets.

    The latter is ``forgotten``, where there is one.
    """
    training, canaries = run_of(kind, share)
    assert training.run().steps_begun == STEPS
    found = bounds_of(
        register([1] * COUNT), canaries.every_step, np.ones(COUNT, np.bool_), canaries.included, DELTA, LEVEL
    )
    outcomes = []
    for event in (kind.event, kind.forgotten):
        if event is not None:
            ledger = Ledger(events=(event,))
            claim = CurveClaim(
                mechanism=ledger, points=profile(ledger), source="m", half=profile(with_half_noise(ledger))
            )
            (verdict,) = curves(found, claim)
            outcomes.append(verdict.outcome)
    return outcomes


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in KINDS])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_half_of_the_noise_is_noticed(name: str, share: float) -> None:
    outcome, *of_forgotten = observed(KINDS[name], share)
    assert (outcome is Outcome.REFUTED) is (share < 1)
    assert set(of_forgotten) <= {Outcome.REFUTED}, "a price that the ledger leaves out"
