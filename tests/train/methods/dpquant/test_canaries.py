"""Canary gradients among quantized layers: they show the noise of the steps, whatever layers are measured on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.canaries.verdict import curves
from audits.claims import CurveClaim
from audits.lineage import _of_steps
from privctl.accounting.profile import profile
from privctl.domain.errors import CommandError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.verdict import Outcome
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.reports.parameters import TrainingParameters
from privctl.train.clipping.factors import Clipping
from privctl.train.methods import method_named
from privctl.train.methods.dpquant.quantization import Measuring, Quantization
from privctl.train.methods.dpquant.schedule import LayerSchedule
from privctl.train.methods.dpquant.settings import DpquantSettings, LayerMode
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.settings.choices import FormatName
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest, SecretsRequest
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import PoissonBatches
from tests.train.methods.dpquant.support import CPU, NAMES, Blobs, sensitivity
from tests.train.steps.test_half_noise import Less

pytestmark = pytest.mark.usefixtures("one_thread")

#: Everybody is in each step; all of them are one release of noise multiplier 1. Of eight epochs four measure, twice.
COUNT, STEPS, NOISE, RELEASES = 8_001, 16, 4.0, 8
DELTA, LEVEL = 1e-5, 0.0125
LEDGER = Ledger(
    events=(
        SampledGaussian(noise_multiplier=NOISE, steps=STEPS),
        SampledGaussian(noise_multiplier=1.0, sample_rate=0.5, steps=RELEASES),
    )
)


def run_of(share: float) -> tuple[Trainer, GradientCanaries]:
    """A training with a ``share`` of the noise of its steps and all of that of its measurements, and its canaries."""
    torch.manual_seed(0)
    net, task = nn.Sequential(nn.Linear(6, 90), nn.ReLU(), nn.Linear(90, 90), nn.ReLU(), nn.Linear(90, 3)), Blobs(8)
    task.rows = task.rows.float()
    plan = TrainingSettings(
        method="dpquant", steps=STEPS, batch_size=8, sample_rate=1.0, learning_rate=0.1, noise_multiplier=NOISE
    )
    canaries = GradientCanaries(COUNT, list(net.parameters()), plan)
    layers = QuantizedLayers(network=net, format=FORMATS[FormatName.LUQ_FP4], seed=b"rounding")
    measured = sensitivity(net, task, layers=layers, batches=PoissonBatches(8, 0.5, NoiseSource(4)), noise_multiplier=1)
    schedule = LayerSchedule(
        names=NAMES, costs=(1.0, 1.0, 1.0), mode=LayerMode.DPQUANT, seed=b"layers", fraction=0.6, beta=10.0
    )
    precision = Quantization(
        layers=layers, schedule=schedule, task=task, epoch_steps=2,
        measuring=Measuring(sensitivity=measured, every=2, repetitions=2, most=RELEASES, smoothing=0.5),
    )  # fmt: skip
    training = Trainer(
        network=net, task=task, recipe=plan, clipping=Clipping(norm=1.0),
        batches=PoissonBatches(8, 1.0, NoiseSource(1)), noise=Less(share), workers=Workers(), device=CPU,
        precision=precision, canaries=canaries,
    )  # fmt: skip
    return training, canaries


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_half_of_the_noise_of_the_steps_is_noticed(share: float) -> None:
    training, canaries = run_of(share)
    finished = training.run()
    assert (finished.steps_begun, finished.side_releases_begun) == (STEPS, RELEASES)
    assert len({epoch.quantized for epoch in training.precision.epochs}) > 1, "layers change"
    found = bounds_of(
        register([1] * COUNT), canaries.every_step, np.ones(COUNT, np.bool_), canaries.included, DELTA, LEVEL
    )
    tested = _of_steps(LEDGER, TrainingParameters(steps_begun=STEPS))
    assert tested == Ledger(events=LEDGER.events[:1])
    (verdict,) = curves(found, CurveClaim(mechanism=tested, points=profile(tested), source="m"))
    assert (verdict.outcome is Outcome.REFUTED) is (share < 1)


def test_what_is_not_all_of_the_steps_is_not_tested_alone() -> None:
    for training in (None, TrainingParameters(steps_begun=STEPS + RELEASES), TrainingParameters()):
        assert _of_steps(LEDGER, training) == LEDGER
    assert _of_steps(None, TrainingParameters(steps_begun=STEPS)) is None


def test_secrets_are_refused() -> None:
    settings: Any = DpquantSettings(format=FormatName.INT4, gradient_canaries=20)
    request = RetrainRequest(
        method=method_named("dpquant"), settings=settings, model=ModelRequest(path=Path("m")),
        data=DataRequest(train=Path("d")), output=Path("o"), secrets=SecretsRequest(plan=Path("p")),
    )  # fmt: skip
    with pytest.raises(CommandError, match="--gradient-canaries are drawn at one rate, and --secrets"):
        request.method.check(request)
    request.method.check(replace(request, secrets=None))
    request.method.check(replace(request, settings=DpquantSettings(format=FormatName.INT4)))
