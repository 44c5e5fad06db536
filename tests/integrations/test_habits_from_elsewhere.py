"""Habits of other programs' users: Opacus's names of arguments, a GradScaler, and files in the way of a report."""

from __future__ import annotations

from collections.abc import Callable
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


def _half(loop: Loop) -> None:
    loop.model.to(torch.bfloat16)


def _with_another_layer(loop: Loop) -> None:
    loop.model.append(nn.Linear(3, 3))


def _with_another_weight(loop: Loop) -> None:
    loop.model[2].weight = nn.Parameter(torch.randn(3, 7))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_half, "'0.weight' is now torch.bfloat16.*under autocast"),
        (_with_another_layer, "'3.weight' requires a gradient and did not when make_private was called"),
        (_with_another_weight, "'2.weight' requires a gradient and did not when make_private was called"),
    ],
)
def test_a_model_that_is_changed_afterwards_is_told(change: Callable[[Loop], None], says: str, steps: int) -> None:
    """A weight in half precision ended in torch's error, and one that was added was not trained, without a word."""
    loop = Loop()
    loop.train(steps)
    change(loop)
    with pytest.raises(CommandError, match=says):
        loop.train()


def test_layers_that_are_thawed_later_are_told() -> None:
    model = nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3))
    data = TensorDataset(torch.randn(60, 5), torch.zeros(60, dtype=torch.long))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    private = privctl.make_private(model, optimizer, DataLoader(data, batch_size=6), noise_multiplier=1.0)
    model[0].requires_grad_(True)
    inputs, labels = next(iter(private.loader))
    with pytest.raises(CommandError, match=r"'0.weight' .* thawed since then; .* before make_private"):
        private.backward(lambda: functional.cross_entropy(model(inputs), labels, reduction="none"))


def test_losses_that_are_no_tensor_are_told() -> None:
    loop = Loop()
    next(iter(loop.private.loader))
    with pytest.raises(InputError, match="returned a dict, where one loss for each example is needed"):
        loop.private.backward(lambda: {"loss": loop.model(torch.randn(2, 5))})  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizers_that_make_no_private_step_are_refused(kind: Any) -> None:
    model, data = nn.Linear(5, 3), TensorDataset(torch.randn(12, 5))
    with pytest.raises(CommandError, match=f"{kind.__name__} .*; give another optimizer"):
        privctl.make_private(model, kind(model.parameters()), DataLoader(data, batch_size=3), noise_multiplier=1.0)


def test_a_model_spread_over_devices_is_refused() -> None:
    spread, data = nn.DataParallel(nn.Linear(5, 3)), TensorDataset(torch.randn(12, 5))
    optimizer, loader = torch.optim.SGD(spread.parameters(), lr=0.1), DataLoader(data, batch_size=3)
    privctl.make_private(spread, optimizer, loader, noise_multiplier=1.0).close()  # on one device, it is the model
    spread.device_ids = [0, 1]
    with pytest.raises(CommandError, match="give the model inside it"):
        privctl.make_private(spread, optimizer, loader, noise_multiplier=1.0)


def test_a_step_of_another_optimizer_is_answered_with_the_one_given() -> None:
    loop = Loop()
    batches, other = iter(loop.private.loader), torch.optim.Adam(loop.model.parameters())
    loop.private.backward(loop.losses(*next(batches)))
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    other.step()
    assert all(torch.equal(*pair) for pair in zip(before, loop.model.parameters(), strict=True))
    with pytest.raises(CommandError, match=r"step\(\) of the optimizer given to make_private"):
        next(batches)
