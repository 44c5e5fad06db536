"""Losses that need a backward pass of their own, as adversarial training does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tests.integrations.loops import EXAMPLES, Loop


def step_on_adversarial_inputs(*, accumulates: bool) -> Tensor:
    """The weights after two steps on whole data sets; ``accumulates`` is whether parameters get gradients, too."""
    loop = Loop(noise_multiplier=1e-6, batch=EXAMPLES)
    for _ in range(2):
        for inputs, labels in loop.private.loader:

            def losses(x: Tensor = inputs, y: Tensor = labels) -> Tensor:
                moved = x.clone().requires_grad_(True)
                loss = 100 * F.cross_entropy(loop.model(moved), y, reduction="sum")
                if accumulates:
                    loss.backward()
                    gradient = moved.grad
                else:
                    (gradient,) = torch.autograd.grad(loss, moved)
                assert gradient is not None
                return F.cross_entropy(loop.model(x + 0.1 * gradient.sign()), y, reduction="none")

            loop.private.backward(losses)
            loop.optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()])


def test_gradients_that_a_loss_accumulates_in_parameters_are_not_released() -> None:
    """They are not clipped; in the first batch, which is compared with autograd, parameters require gradients."""
    alone, both = (step_on_adversarial_inputs(accumulates=accumulates) for accumulates in (False, True))
    assert both.numpy() == pytest.approx(alone.numpy(), abs=1e-5)
