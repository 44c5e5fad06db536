"""What one number a step is worth: the moment of docs/mechanisms.md#zeroth-order-training, over drawn directions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from privctl.train.directional import direction

DIMENSION = 4


def gradient_and_hessian() -> tuple[Tensor, Tensor]:
    """A gradient and a symmetric Hessian."""
    drawn = torch.Generator().manual_seed(3)
    gradient = torch.randn(DIMENSION, generator=drawn, dtype=torch.float64)
    half = torch.randn(DIMENSION, DIMENSION, generator=drawn, dtype=torch.float64)
    return gradient, half @ half.T


def stated(gradient: Tensor, hessian: Tensor) -> float:
    whole = gradient.square().sum() * hessian.trace() + 2 * gradient @ hessian @ gradient
    return float(whole - 2 * (hessian.diagonal() * gradient.square()).sum())


def moment(gradient: Tensor, hessian: Tensor, signs: Tensor) -> float:
    return float((gradient @ signs) ** 2 * (signs @ hessian @ signs))


def test_the_second_moment_is_that_of_all_signs() -> None:
    gradient, hessian = gradient_and_hessian()
    every = [torch.tensor(each, dtype=torch.float64) for each in itertools.product((-1, 1), repeat=DIMENSION)]
    exact = sum(moment(gradient, hessian, signs) for signs in every) / len(every)
    assert stated(gradient, hessian) == pytest.approx(exact, rel=1e-12)
    assert abs(float(gradient.square().sum() * hessian.trace()) - exact) > 1e-3 * exact, "the first term is not all"


def test_drawn_directions_have_it() -> None:
    gradient, hessian = gradient_and_hessian()
    shapes = {"w": torch.Size([DIMENSION])}
    drawn = [direction(b"theory", step, 0, shapes)["w"].sign().double() for step in range(4000)]
    values = torch.tensor([moment(gradient, hessian, signs) for signs in drawn], dtype=torch.float64)
    error = float(values.std()) / len(values) ** 0.5
    assert abs(float(values.mean()) - stated(gradient, hessian)) < 5 * error
