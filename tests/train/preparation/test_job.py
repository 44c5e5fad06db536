"""A run about to start: its recipe is one of its method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
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


def test_two_passes_are_left_where_one_was_made_and_the_method_has_them() -> None:
    assert job("dp-sgd", 1.0).may_pass_twice
    assert not job("dp-sgd", 1.0, passes=2).may_pass_twice
    assert not job("plain", 0.0).may_pass_twice
