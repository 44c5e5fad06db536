"""Losses that differentiate more than the network: adversarial inputs, and copies of the network as teachers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader

import privctl
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


def taught(*, copied_after: bool, with_gradients: bool) -> Tensor:
    """The weights after three steps towards a copy of the network, computed with or without gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    earlier = copy.deepcopy(model)
    loader = DataLoader(Loop().data, batch_size=EXAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = privctl.make_private(model, optimizer, loader, noise_multiplier=1e-6)
    teacher = (copy.deepcopy(model) if copied_after else earlier).requires_grad_(False)
    for _ in range(3):
        for inputs, labels in private.loader:

            def losses(x: Tensor = inputs, y: Tensor = labels) -> Tensor:
                with torch.set_grad_enabled(with_gradients):
                    target = teacher(x)
                own = model(x)
                return (own - target).square().sum(1) + F.cross_entropy(own, y, reduction="none")

            private.backward(losses)
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("copied_after", [False, True])
def test_a_copy_of_the_network_adds_no_gradients(copied_after: bool) -> None:
    """A copy has the hooks of what it was made of, and at first its outputs too, so that no comparison shows it."""
    without, within = (taught(copied_after=copied_after, with_gradients=given) for given in (False, True))
    assert within.numpy() == pytest.approx(without.numpy(), abs=1e-4)
