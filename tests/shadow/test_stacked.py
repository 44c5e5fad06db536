"""Steps on stacked parameters, and who may be stacked."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from privctl.domain.errors import CommandError
from privctl.domain.mechanism import Optimizer
from privctl.shadow import run, stacked
from privctl.train.settings.recipe import TrainingSettings


class OneGradient(stacked._Stack):
    """Two models of one parameter, whose gradients are 1 and 2 in every step."""

    def __init__(self, recipe: TrainingSettings) -> None:
        self._trained = {"w": nn.Parameter(torch.tensor([[3.0], [5.0]]))}
        self._recipe = recipe
        self._optimizer = stacked._optimizer(list(self._trained.values()), recipe)

    def _groups(self, step: int) -> Iterator[Any]:
        yield ()

    def _accumulate(self, group: Any, step: int) -> None:
        weights = self._trained["w"]
        assert weights.grad is not None
        weights.grad += torch.tensor([[1.0], [2.0]])


@pytest.mark.parametrize(("momentum", "second"), [(0.0, 1.0), (0.9, 1.9)])
def test_stacked_gradient_descent_decays_weights_apart_from_the_gradient(momentum: float, second: float) -> None:
    recipe = TrainingSettings(
        method="plain", steps=2, batch_size=1, sample_rate=1, learning_rate=0.3, weight_decay=0.5, momentum=momentum,
        optimizer=Optimizer.MOMENTUM if momentum else Optimizer.SGD,
    )  # fmt: skip
    found = OneGradient(recipe)
    for step in range(2):
        found.step(step)
    for value, start, gradient in zip(found._trained["w"].flatten().tolist(), (3, 5), (1, 2), strict=True):
        once = start * (1 - 0.3 * 0.5) - 0.3 * gradient
        assert value == pytest.approx(once * (1 - 0.3 * 0.5) - 0.3 * second * gradient, rel=1e-5)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("an adapter as MODEL", {"adapter": object()}),
        ("--lora-rank", {"lora_rank": 2}),
        ("--dropout", {"dropout": True}),
    ],
)
def test_models_that_cannot_be_stacked_are_trained_one_by_one(named: str, change: dict[str, Any]) -> None:
    model = SimpleNamespace(**{"lora_rank": None, "adapter": None, "dropout": False, **change})
    training = SimpleNamespace(model=model, bf16=False)

    def at_once(vectorize: int | None) -> int:
        pool: Any = SimpleNamespace(request=SimpleNamespace(training=training, vectorize=vectorize))
        return run._models_at_once(pool, nn.Linear(1, 1), torch.device("cpu"), 4)

    with pytest.raises(CommandError, match=f"--vectorize 2 cannot be combined with {named}; remove one"):
        at_once(2)
    assert (at_once(1), at_once(None)) == (1, 1)
