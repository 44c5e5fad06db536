"""Modules that are taken as a whole under autocast: its rounding neither looks like mixed examples nor hides them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample
from tests.train.clipping.support import Batch, Between, squared
from tests.train.clipping.test_promotion import PLACES, WIDTH, RelativeBias


class Whole(RelativeBias):
    """Returns float32, and mixes examples by a ``share``."""

    share = 0.0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = super().forward(x, mask).float()
        return x - self.share * x.mean(0, keepdim=True)


def promoted(model: nn.Module) -> list[str]:
    """The modules that are taken as a whole, where something was in half precision.

    The examples have much in common, so that the batch's gradient is long beside theirs, and so is its rounding.
    """

    def losses(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squared(model, batch).float()

    alike = {"x": 1 + 0.2 * torch.randn(60, PLACES, WIDTH)}
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: losses(alike))
        assert engine.reduced
        return [each.module for each in engine.promoted]


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


def test_rounding_neither_looks_like_mixing_nor_hides_it() -> None:
    model = Between(Whole())
    assert promoted(model) == ["layer"]
    model.layer.share = 0.01
    with pytest.raises(InputError, match="together than one by one, so that it mixes them"):
        promoted(model)


def test_a_whole_model_rounds_inside_although_its_outputs_are_in_float32() -> None:
    class Alone(Whole):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask).square().sum((1, 2))

    model = Alone()

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(torch.randn(60, PLACES, WIDTH))

    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(losses)
        assert [each.module for each in engine.promoted] == [""]
        assert engine.reduced
