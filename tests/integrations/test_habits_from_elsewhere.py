"""Habits of other programs' users: Opacus's names of arguments, a GradScaler, and files in the way of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import CommandError
from tests.integrations.loops import Loop


def test_names_of_opacus_are_answered_with_ours() -> None:
    model = nn.Linear(5, 3)
    loader = DataLoader(TensorDataset(torch.randn(60, 5), torch.zeros(60, dtype=torch.long)), batch_size=6)
    options: dict[str, Any] = {
        "module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "data_loader": loader,
        "target_epsilon": 8.0, "target_delta": 1e-5, "max_grad_norm": 1.0, "epochs": 1,
    }  # fmt: skip
    with pytest.raises(CommandError) as caught:
        privctl.make_private(**options)
    assert str(caught.value).endswith(
        "give module as model, data_loader as loader, max_grad_norm as clip_norm, target_epsilon as epsilon, "
        "target_delta as delta"
    )
    ours = {"module": "model", "data_loader": "loader", "max_grad_norm": "clip_norm", "target_epsilon": "epsilon",
            "target_delta": "delta"}  # fmt: skip
    privctl.make_private(**{ours.get(name, name): value for name, value in options.items()}).close()


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scaler_is_refused_and_a_plain_step_may_follow(unscaled: bool) -> None:
    loop = Loop()
    scaler = torch.amp.GradScaler("cpu")
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    batches = iter(loop.private.loader)
    inputs, labels = next(batches)
    scaler.scale(torch.zeros(()))  # it makes its scale when it is first used
    loop.private.backward(loop.losses(inputs, labels))
    if unscaled:
        scaler.unscale_(loop.optimizer)
    with pytest.raises(CommandError, match=r"a GradScaler called optimizer\.step\(\).*use no scaler"):
        scaler.step(loop.optimizer)
    assert all(torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))
    loop.optimizer.step()
    assert not any(torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))


def test_an_optimizer_given_back_goes_with_a_scaler_again() -> None:
    loop = Loop()
    loop.train()
    loop.private.close()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(loop.model(torch.randn(4, 5)).sum()).backward()
    scaler.step(loop.optimizer)
    assert "_step_supports_amp_scaling" not in vars(loop.optimizer)


def test_a_report_in_the_way_is_told_in_arguments(tmp_path: Path) -> None:
    loop = Loop()
    loop.train()
    model = loop.save(tmp_path / "model.safetensors")
    loop.private.report(model)
    with pytest.raises(CommandError) as caught:
        loop.private.report(model)
    assert str(caught.value).endswith("exists; give force=True to replace it, or choose another output")
    with pytest.raises(CommandError) as caught:
        loop.private.report(model, output=model, force=True)
    assert "--" not in str(caught.value)
