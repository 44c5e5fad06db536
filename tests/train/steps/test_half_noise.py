"""Canary gradients in trainings of every kind: an honest one passes, and one with half of its noise is refuted.

No training draws noise along a tree. Zeroth-order steps release one number a direction, in which canaries would add
up: ``tests/train/methods/dp_zo`` finds half of their noise otherwise. Batches of balls and bins, and users whose
records are clipped one by one, are drawn otherwise than canaries. Canaries do not count among the examples of a batch
that is cut: they see its noise, not the cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.verdict import curves
from audits.claims import CurveClaim, with_half_noise
from privctl.accounting.banded import banded_coefficients
from privctl.accounting.buffered import BufferedMatrix
from privctl.accounting.profile import profile
from privctl.domain.events import BandedGaussian, BufferedGaussian, Event, Ledger, SampledGaussian, TruncatedGaussian
from privctl.domain.verdict import Outcome
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.settings.adaptive_clipping import AdaptiveClipping
from privctl.train.settings.public_mixing import PublicMixing
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import GradientNoise, KeyedNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.public_gradients import PublicRecords
from privctl.train.steps.sampling import PoissonBatches, PublicBatches
from privctl.train.steps.step_noise import correlated
from tests.train.steps.test_loop import Points

COUNT, BANDS, STEPS = 30_001, 3, 42
DELTA, LEVEL = 1e-5, 0.0125
BAND = banded_coefficients(BANDS, STEPS)
BUFFERS = BufferedMatrix(first=0.9, weights=(0.2,), decays=(0.5,))
#: Steps after which a pass begins anew, in which a record with buffers is used once.
PASS = 14


class Less:
    """Noise of which there is a ``share`` of what is said."""

    description, cryptographic = "less", False

    def __init__(self, share: float) -> None:
        self.share, self.noise = share, KeyedNoise(NoiseSource(5))

    def release(self, tensors: Any, stddev: float, step: int) -> None:
        self.noise.release(tensors, self.share * stddev, step)


class CanariesInRows(GradientCanaries):
    """Canaries that take part in every ``apart``-th step, and are seen in the rows of C times what is released."""

    def __init__(self, parameters: Sequence[nn.Parameter], plan: TrainingSettings, matrix: NDArray[Any], apart: int):
        super().__init__(COUNT, parameters, plan)
        self._matrix, self._apart, self._noise = matrix, apart, plan.noise_multiplier
        self._rate, self._released = plan.sample_rate, list[NDArray[np.float64]]()

    def add(self, gradients: Sequence[Tensor], clip_norm: float) -> None:
        if len(self._released) % self._apart == 0:
            super().add(gradients, clip_norm)

    def observe(self, gradients: Sequence[Tensor], clip_norm: float) -> None:
        self._released.append(self._read_own(gradients) / self.unit(clip_norm))
        if len(self._released) < len(self._matrix):
            return
        rows, uses = self._matrix @ np.array(self._released), self._matrix[:, :: self._apart].T
        # By coins each use is seen by itself, which it can be as none shares a row with another; else all are one.
        for moved in uses if self._rate < 1 else [uses.sum(0)]:
            growth = (2 * moved @ rows - moved @ moved) / (2 * self._noise**2)
            absent = math.log1p(-self._rate) if self._rate < 1 else -math.inf
            self.every_step += np.logaddexp(absent, math.log(self._rate) + growth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of training: its ledger, what its recipe has besides, and C with the steps between uses of a record."""

    event: Event
    noise: float
    more: dict[str, Any]
    bands: tuple[float, ...] | None = None
    matrix: BufferedMatrix | None = None
    apart: int = 1
    rate: float = 1.0

    def correlation(self) -> NDArray[Any] | None:
        """C, of shape (steps, steps); None where noise is independent."""
        if self.bands is None and self.matrix is None:
            return None
        columns = list(self.bands or ())
        if self.matrix is not None:
            weights = zip(self.matrix.weights, self.matrix.decays, strict=True)
            columns = [self.matrix.first, *(0.0 for _ in range(STEPS - 1))]
            for weight, decay in weights:
                columns[1:] = [c + weight * decay**t for t, c in enumerate(columns[1:])]
        found = np.zeros((STEPS, STEPS))
        for lag, value in enumerate(columns):
            found += value * np.eye(STEPS, k=-lag)
        return found


#: Everybody takes part in each step, which tells an audit most.
EVERYBODY = SampledGaussian(noise_multiplier=6.5, steps=STEPS)


KINDS = {
    "adaptive clipping": Kind(
        event=EVERYBODY, noise=6.5,
        more={"adaptive": AdaptiveClipping(quantile=0.5, learning_rate=0.2, count_stddev=20.0)},
    ),
    "batches that are cut": Kind(
        event=TruncatedGaussian(noise_multiplier=3.5, largest_batch=150, examples=200, sample_rate=0.5, steps=STEPS),
        noise=3.5, more={}, rate=0.5,
    ),
    "public records": Kind(
        event=EVERYBODY, noise=6.5, more={"public": PublicMixing(weight=3.0, batch_size=1, records=1)}
    ),
    "bands": Kind(
        event=BandedGaussian(noise_multiplier=3.5, coefficients=BAND, sample_rate=0.3, steps=STEPS),
        noise=3.5, more={}, bands=BAND, apart=BANDS, rate=BANDS * 0.3,
    ),
    "buffers": Kind(
        event=BufferedGaussian(
            noise_multiplier=4.0, first=BUFFERS.first, weights=BUFFERS.weights, decays=BUFFERS.decays,
            sample_rate=1 / PASS, steps=STEPS,
        ),
        noise=4.0, more={}, matrix=BUFFERS, apart=PASS,
    ),
}  # fmt: skip
QUICK = ("adaptive clipping",)


def observed(kind: Kind, share: float) -> Outcome:
    """The verdict on the mechanism after a training with canaries, and with a ``share`` of its noise."""
    plan = TrainingSettings(
        method="dp-sgd", steps=STEPS, batch_size=20, sample_rate=kind.rate, learning_rate=0.1,
        noise_multiplier=kind.noise, **kind.more,
    )  # fmt: skip
    network = nn.Linear(COUNT + 1, 1, bias=False)
    parameters, matrix = list(network.parameters()), kind.correlation()
    canaries = (
        GradientCanaries(COUNT, parameters, plan)
        if matrix is None
        else CanariesInRows(parameters, plan, matrix, kind.apart)
    )
    noise: GradientNoise = Less(share)
    rows = torch.full((1, COUNT + 1), 100.0)
    public = PublicRecords(task=Points(rows), batches=PublicBatches(1, 1, 0), weight=3.0) if plan.public else None
    made = Trainer(
        network=network, task=Points(torch.zeros(4, COUNT + 1)), recipe=plan, clipping=None,
        batches=PoissonBatches(4, 0.0, NoiseSource(1)), noise=correlated(noise, kind.bands, kind.matrix),
        workers=Workers(), device=torch.device("cpu"), canaries=canaries, public=public,
    )  # fmt: skip
    assert made.run().steps_begun == STEPS
    found = bounds_of(
        register([1] * COUNT), canaries.every_step, np.ones(COUNT, np.bool_), canaries.included, DELTA, LEVEL
    )
    ledger = Ledger(events=(kind.event,))
    claim = CurveClaim(mechanism=ledger, points=profile(ledger), source="m", half=profile(with_half_noise(ledger)))
    (verdict,) = curves(found, claim)
    return verdict.outcome


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in KINDS])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_half_of_the_noise_is_noticed(name: str, share: float) -> None:
    assert (observed(KINDS[name], share) is Outcome.REFUTED) is (share < 1)
