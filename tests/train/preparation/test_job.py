"""A run about to start: its recipe is one of its method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.mechanism import Optimizer
from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
from privctl.train.settings.method_settings import MethodSettings
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest


def job(method: str, noise: float, passes: int = 1) -> TrainingJob:
    request = RetrainRequest(
        method=method_named(method), model=ModelRequest(path=Path("m")), data=DataRequest(train=Path("d")),
        output=Path("o"),
    )  # fmt: skip
    recipe = TrainingSettings(
        method=method, steps=1, batch_size=4, sample_rate=0.5, learning_rate=0.1, noise_multiplier=noise,
        clipping_passes=passes,
    )  # fmt: skip
    unread: Any = None
    return TrainingJob(
        request=request, model=unread, task=unread, held_out=None, recipe=recipe, delta=None,
        labels_from_private_data=False,
    )  # fmt: skip


@pytest.mark.parametrize(("method", "noise"), [("dp-sgd", 0.0), ("plain", 1.0), ("clipped", 1.0)])
def test_noise_that_the_method_does_not_add_is_refused(method: str, noise: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        job(method, noise)
    assert job(method, 1.0 - noise).recipe.noise_multiplier == 1.0 - noise


@pytest.mark.parametrize(
    ("method", "batch", "rate"),
    [("dp-sgd", 16, 5e-4), ("dp-sgd", 64, 5e-4), ("dp-sgd", 128, 5e-4 * 2**0.5), ("dp-sgd", 256, 1e-3),
     ("dp-sgd", 4096, 1e-3), ("dp-zo", 256, 5e-4), ("plain", 256, 5e-4)],
)  # fmt: skip
def test_noisy_gradients_of_larger_batches_allow_higher_rates(method: str, batch: int, rate: float) -> None:
    request = replace(job("dp-sgd", 1.0).request, method=method_named(method), settings=MethodSettings())
    assert request.rate_for(batch) == pytest.approx(rate)
    assert replace(request, learning_rate=0.1).rate_for(batch) == 0.1


@pytest.mark.parametrize(
    ("method", "batch", "given", "rate"),
    [("dp-sgd", 64, {}, 0.032), ("dp-sgd", 256, {}, 0.256), ("dp-sgd", 64, {"clip_norm": 0.1}, 0.32),
     ("dp-sgd", 64, {"optimizer": Optimizer.MOMENTUM, "momentum": 0.9}, 0.0032), ("dp-zo", 64, {}, 5e-4),
     ("plain", 64, {}, 5e-4)],
)  # fmt: skip
def test_noise_moves_weights_as_far_by_sgd_as_by_adam(
    method: str, batch: int, given: dict[str, Any], rate: float
) -> None:
    request = replace(
        job("dp-sgd", 1.0).request, method=method_named(method), settings=MethodSettings(),
        **{"optimizer": Optimizer.SGD} | given,
    )  # fmt: skip
    assert request.rate_for(batch) == pytest.approx(rate)


def test_two_passes_are_left_where_one_was_made_and_the_method_has_them() -> None:
    assert job("dp-sgd", 1.0).may_pass_twice
    assert not job("dp-sgd", 1.0, passes=2).may_pass_twice
    assert not job("plain", 0.0).may_pass_twice
