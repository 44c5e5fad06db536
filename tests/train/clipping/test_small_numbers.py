"""Gradients of which a part is too small for float32: what is added stays within the clip norm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample
from tests.train.clipping.support import length

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_least_clip_norm_still_clips() -> None:
    """Squares of shorter gradients are rounded to nothing in float32: a clip norm of 1e-23 would hold nothing."""
    torch.manual_seed(0)
    rows, norm = torch.randn(1, 64), 5e-13
    model = nn.Linear(64, 64, bias=False)
    with PerExample(model, Clipping(norm=norm)) as clipped:
        clipped.accumulate(lambda: norm * (20 / 64) * model(rows).sum(1))
    assert model.weight.grad is not None
    assert 0.99 * norm < float(model.weight.grad.double().norm()) <= norm


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("kind", ["linear", "linear on one position", "convolution"])
def test_a_record_whose_products_vanish_in_float32_is_clipped_too(kind: str, passes: int) -> None:
    """Output gradients of 2e-23 have squares of 0 in float32, but inputs of 1e18 times them are far above the norm."""
    norm, positions = 1e-5, 1 if kind == "linear on one position" else 8
    layer = nn.Conv2d(32, 64, 2) if kind == "convolution" else nn.Linear(64, 64)
    shape = (32, 3, 5) if kind == "convolution" else (positions, 64)

    def losses(inputs: Tensor, scale: float) -> Tensor:
        return layer(inputs).flatten(1).sum(1) * scale

    with PerExample(layer, Clipping(norm=norm), passes=passes) as private:
        private.accumulate(lambda: losses(torch.randn(2, *shape), 1.0))  # which is compared with autograd's
        for parameter in layer.parameters():
            parameter.grad = None
        huge = torch.full((1, *shape), 1e18)
        (unclipped,) = torch.autograd.grad(losses(huge, 2e-23).sum(), layer.weight)
        assert float(unclipped.double().norm()) > 10 * norm
        private.accumulate(lambda: losses(huge, 2e-23))
    assert 0 < length({name: parameter.grad for name, parameter in layer.named_parameters()}) <= norm
