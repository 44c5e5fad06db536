"""In the user's own loop, composed activations use torch's kernels during ``backward`` and at no other time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers.activations import NewGELUActivation

import privctl
from privctl.domain.errors import InputError
from privctl.models.activations import KERNELS


class GELULoop:
    """A network with a composed activation, its private training and one batch of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(40, 5), torch.randint(0, 3, (40,)))
        self.model = nn.Sequential(nn.Linear(5, 7), NewGELUActivation(), nn.Linear(7, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=40)  # every record is in every batch
        self.private = privctl.make_private(self.model, self.optimizer, loader, noise_multiplier=1e-6, clip_norm=0.3)
        self.batches = iter(self.private.loader)
        self.inputs, self.labels = next(self.batches)
        self.fused: list[bool] = []

    def losses(self) -> Tensor:
        self.fused.append(self.is_fused)
        return F.cross_entropy(self.model(self.inputs), self.labels, reduction="none")

    @property
    def is_fused(self) -> bool:
        return "forward" in vars(self.model[1])


def test_backward_uses_the_kernel_and_restores_the_module() -> None:
    loop = GELULoop()
    assert not loop.is_fused
    loop.private.backward(loop.losses)
    assert loop.fused
    assert all(loop.fused)
    assert not loop.is_fused


def test_a_failed_backward_restores_the_module() -> None:
    loop = GELULoop()

    def failing() -> Tensor:
        return loop.losses() * torch.nan

    with pytest.raises(InputError):
        loop.private.backward(failing)
    assert all(loop.fused)
    assert not loop.is_fused


def test_the_step_is_that_of_the_composed_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, composed = GELULoop(), GELULoop()
    for loop in (fused, composed):
        loop.private.backward(loop.losses)
        loop.optimizer.step()
        monkeypatch.setattr("privctl.models.activations.KERNELS", {})
    assert all(fused.fused)
    assert not any(composed.fused)
    for one, other in zip(fused.model.parameters(), composed.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def test_a_forward_that_the_user_sets_later_is_used() -> None:
    loop = GELULoop()
    loop.model[1].forward = own = torch.nn.functional.relu
    loop.private.backward(loop.losses)
    assert loop.model[1].forward is own
    expected = F.cross_entropy(loop.model[2](F.relu(loop.model[0](loop.inputs))), loop.labels, reduction="none")
    torch.testing.assert_close(loop.losses(), expected)


def test_a_kernel_with_another_formula_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, ("transformers.activations", "NewGELUActivation"), F.gelu)
    loop = GELULoop()
    loop.private.backward(loop.losses)
    assert not any(loop.fused)
