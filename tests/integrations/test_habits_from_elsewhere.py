"""Habits of other programs' users: Opacus's names of arguments, a GradScaler, and files in the way of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import CommandError, InputError
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


def test_what_opacus_returns_as_three_is_one() -> None:
    with pytest.raises(CommandError, match="make_private returns one object.*its attribute loader"):
        _, _, _ = Loop().private  # type: ignore[misc]


def test_accumulating_over_batches_is_answered_with_pieces() -> None:
    """The habit of other loops: several batches, then one step."""
    loop = Loop()
    batches = iter(loop.private.loader)
    loop.private.backward(loop.losses(*next(batches)))
    with pytest.raises(CommandError, match=r"was not stepped.*To accumulate gradients, .* use pieces\(ROWS\)"):
        next(batches)


def test_losses_without_a_gradient_are_told_from_reduced_ones() -> None:
    loop = Loop()
    batches = iter(loop.private.loader)
    inputs, labels = next(batches)

    def evaluated() -> torch.Tensor:
        with torch.no_grad():
            return loop.losses(inputs, labels)()

    with pytest.raises(InputError, match=r"the losses have no gradient; compute them .* outside torch\.no_grad"):
        loop.private.backward(evaluated)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_refused(in_place: bool) -> None:
    """Its layers run in a compiled graph, where tracing what clipping attaches to them ended in a traceback."""
    model = nn.Sequential(nn.Linear(5, 3))
    compiled: Any = model
    if in_place:
        model[0].compile()
    else:
        compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(60, 5)), batch_size=6)
    with pytest.raises(CommandError, match=r"torch\.compile made the model.*from before that"):
        privctl.make_private(compiled, optimizer, loader, noise_multiplier=1.0)


def test_a_loop_continued_elsewhere_is_told_that_earlier_steps_count() -> None:
    """A loaded optimizer shows it: with the weights alone, a report would count the later steps only."""
    loop = Loop()
    optimizer = torch.optim.Adam(loop.model.parameters())
    loop.model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    loader = DataLoader(TensorDataset(torch.randn(60, 5)), batch_size=6)
    with pytest.raises(CommandError, match="weights from before any step on these examples.*cannot be continued"):
        privctl.make_private(loop.model, optimizer, loader, noise_multiplier=1.0)


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


def test_a_model_that_was_run_before_backward_is_told() -> None:
    loop = Loop()
    inputs, labels = next(iter(loop.private.loader))
    outputs = loop.model(inputs)
    with pytest.raises(InputError, match="the model was not run inside the function that returns the losses"):
        loop.private.backward(lambda: functional.cross_entropy(outputs, labels, reduction="none"))
    loop.private.backward(loop.losses(inputs, labels))
