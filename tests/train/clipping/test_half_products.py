"""Norms measured from bfloat16 factors bound what is added, however the factors were chosen: sums are in float32.

A GPU multiplies half precision and adds in float32, which this does as well; a planted fault adds in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample, embedding, gram, linear, products

#: So many positions and features that norms come from Gram matrices.
_POSITIONS, _WIDTH = 96, 520
_NORM = 1.0

Product = Callable[[Tensor, Tensor], Tensor]


def in_float32(left: Tensor, right: Tensor) -> Tensor:
    return left.float() @ right.float()


def in_bfloat16(left: Tensor, right: Tensor) -> Tensor:
    """Adds one product after the other, and rounds each time: 256 + 1 is 256."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.bfloat16)
    for k in range(left.shape[-1]):
        total = total + left[..., k, None] * right[..., None, k, :]
    return total.float()


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, measured: Product, summed: Product) -> None:
    """Factors stay in half precision; norms come from the product ``measured``, sums over examples from ``summed``."""
    for module in (products, gram, linear, embedding):
        if hasattr(module, "operand"):
            monkeypatch.setattr(module, "operand", lambda values: values)
    plain = torch.bmm, torch.mm

    def bmm(left: Tensor, right: Tensor, **settings: Any) -> Tensor:
        return measured(left, right) if "out_dtype" in settings else plain[0](left, right)

    def mm(left: Tensor, right: Tensor, **settings: Any) -> Tensor:
        return summed(left, right) if "out_dtype" in settings else plain[1](left, right)

    monkeypatch.setattr(torch, "bmm", bmm)
    monkeypatch.setattr(torch, "mm", mm)


def ones() -> tuple[Tensor, Tensor]:
    """Every inner product is a long sum of ones."""
    return torch.ones(1, _POSITIONS, _WIDTH), torch.ones(1, _POSITIONS, _WIDTH)


def one_large() -> tuple[Tensor, Tensor]:
    """A large number first, beside which the others vanish one by one, and not together."""
    inputs, gradients = ones()
    inputs[..., 0] = gradients[..., 0] = 16.0
    return inputs, gradients


def cancelling() -> tuple[Tensor, Tensor]:
    """Positions that cancel but for a thousandth."""
    inputs, gradients = ones()
    gradients[:, 1::2] = -1.0
    gradients[:, 0] = 1.0078125
    return 1000 * inputs, gradients


def apart() -> tuple[Tensor, Tensor]:
    """Sizes far apart, of both signs, from a fixed draw."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, _POSITIONS, _WIDTH, generator=drawn) * 2.0 ** torch.arange(-48, 48)[:, None]
    return inputs, torch.randn(1, _POSITIONS, _WIDTH, generator=drawn)


def added(inputs: Tensor, gradients: Tensor) -> float:
    """The norm of what one example adds to a linear layer's gradient, under autocast, float64."""
    layer = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = layer(inputs)
        return (outputs.float() * gradients).sum((1, 2))

    with PerExample(layer, Clipping(norm=_NORM)) as engine:
        engine._checked = True  # the planted fault would show there too
        engine.accumulate(losses)
    assert layer.weight.grad is not None
    return float(layer.weight.grad.double().norm())


@pytest.mark.parametrize("hostile", [ones, one_large, cancelling, apart])
def test_no_example_adds_more_than_the_clip_norm(
    hostile: Callable[[], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    as_on_a_gpu(monkeypatch, in_float32, in_float32)
    assert not linear.forming_is_cheaper(_POSITIONS, _WIDTH, _WIDTH)
    # Where positions cancel, rounding may be most of what is left, and the factor allows for that.
    assert (0.01 if hostile is cancelling else 0.999) * _NORM < added(*hostile()) <= _NORM


@pytest.mark.parametrize("hostile", [ones, one_large])
def test_sums_in_bfloat16_would_let_one_add_more(
    hostile: Callable[[], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    as_on_a_gpu(monkeypatch, in_bfloat16, in_float32)
    assert added(*hostile()) > 1.5 * _NORM


def test_a_sum_in_bfloat16_would_lose_what_was_measured(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    as_on_a_gpu(monkeypatch, in_float32, in_bfloat16)
    assert not 0.999 * _NORM < added(*one_large()) <= _NORM
