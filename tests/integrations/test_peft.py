"""A private loop around a peft model: the adapter that peft saves is what the report is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import InputError
from privctl.integrations.private_training import PrivateTraining

peft = pytest.importorskip("peft")


def trained(name: str = "default", **config: Any) -> tuple[nn.Module, PrivateTraining]:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0"], **config), adapter_name=name)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    data = TensorDataset(torch.randn(12, 5), torch.randint(0, 3, (12,)))
    private = privctl.make_private(model, optimizer, DataLoader(data, batch_size=6), noise_multiplier=1.0)
    for inputs, labels in private.loader:
        private.backward(lambda: nn.functional.cross_entropy(model(inputs), labels, reduction="none"))  # noqa: B023
        optimizer.step()
    return model, private


@pytest.mark.parametrize("config", [{}, {"modules_to_save": ["2"]}], ids=["lora", "with a head"])
def test_the_adapter_that_peft_saves_gets_a_report(config: dict[str, Any], tmp_path: Path) -> None:
    model, private = trained(**config)
    model.save_pretrained(tmp_path / "adapter")  # type: ignore[operator]
    report = private.report(tmp_path / "adapter")
    assert report.guarantees[0].name == "own-loop"
    assert privctl.verify(tmp_path / "adapter").exit_code == 0


def test_another_adapter_or_a_later_state_gets_none(tmp_path: Path) -> None:
    model, private = trained()
    model.save_pretrained(tmp_path / "adapter")  # type: ignore[operator]
    with torch.no_grad():
        next(parameter for parameter in model.parameters() if parameter.requires_grad).add_(1)
    with pytest.raises(InputError, match="holds another 'base_model.model.0.lora_A.weight' than the model"):
        private.report(tmp_path / "adapter")
    _, private = trained(modules_to_save=["2"])
    with pytest.raises(InputError, match="has no tensor .*modules_to_save.* which was trained"):
        private.report(tmp_path / "adapter")


def test_an_adapter_of_another_name_lies_in_a_folder_of_its_own(tmp_path: Path) -> None:
    model, private = trained("ward")
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    assert private.report(tmp_path / "ward").guarantees
