"""Updates are torch's own rules with a gradient of zero where nothing fires, made up for at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from privctl.domain.mechanism import Optimizer
from privctl.train.methods.ferret.settings import SilentMomentum, UpdateScale
from privctl.train.methods.ferret.update import UpdateRule, Updates
from privctl.train.settings.choices import Schedule
from privctl.train.steps.optimizers import DecayedSGD

STEPS = 120
SHAPES = {"a": (4, 3), "b": (5,), "c": (2, 2)}
GROUPS = (("a", "b"), ("c",))
#: Steps in which each group fires; the second begins late and rests long.
FIRES: tuple[frozenset[int], ...] = (frozenset({0, 1, 7, 50}), frozenset({20, 118}))


def weights() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def along(step: int, group: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(100 * step + group)
    found = {name: torch.randn(SHAPES[name], generator=draw).sign() for name in GROUPS[group]}
    length = torch.cat([tensor.flatten() for tensor in found.values()]).norm()
    return {name: tensor / length for name, tensor in found.items()}


def amount(step: int, group: int) -> float:
    return 1.0 if (step + group) % 3 else -1.0


def rule(**changes: Any) -> UpdateRule:
    return UpdateRule(**{"steps": STEPS, "learning_rate": 0.01, **changes})


def ours(plan: UpdateRule, settled: Sequence[int] = ()) -> dict[str, Tensor]:
    found = weights()
    updates = Updates(found, GROUPS, plan, [len(fires) for fires in FIRES])
    for step in range(STEPS):
        fired = [group for group, fires in enumerate(FIRES) if step in fires]
        if fired or step in settled:
            updates.catch_up(step)
        for group in fired:
            updates.apply(step, group, along(step, group), amount(step, group))
    updates.catch_up(STEPS)
    return found


def torchs(plan: UpdateRule, *, hold: bool = False) -> dict[str, Tensor]:
    """The same by torch, one step after another, in float64."""
    found = {name: tensor.double().requires_grad_() for name, tensor in weights().items()}
    common: dict[str, Any] = {"lr": plan.learning_rate, "weight_decay": plan.weight_decay}
    rates = plan.rates()
    for group, fires in enumerate(FIRES):
        mine = [found[name] for name in GROUPS[group]]
        optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(mine, betas=(plan.beta1, plan.beta2), **common)
            if plan.adaptive
            else DecayedSGD(mine, momentum=plan.momentum, **common)
        )
        for step in range(STEPS):
            if hold and step not in fires:
                continue
            for name in GROUPS[group]:
                gradient = amount(step, group) * along(step, group)[name].double()
                found[name].grad = gradient if step in fires else torch.zeros_like(gradient)
            for parameters in optimizer.param_groups:
                parameters["lr"] = float(rates[step])
            optimizer.step()
    return {name: tensor.detach().float() for name, tensor in found.items()}


RULES = [
    {},
    {"beta1": 0.0},
    {"weight_decay": 0.5, "schedule": Schedule.COSINE, "warmup_steps": 5},
    {"optimizer": Optimizer.ADAM, "beta1": 0.99, "beta2": 0.9},
    {"optimizer": Optimizer.SGD, "schedule": Schedule.LINEAR},
    {"optimizer": Optimizer.SGD, "weight_decay": 0.5},
    {"optimizer": Optimizer.MOMENTUM, "momentum": 0.9, "weight_decay": 0.1},
]


@pytest.mark.parametrize("changes", RULES)
def test_coasting_is_a_gradient_of_zero(changes: dict[str, Any]) -> None:
    plan = rule(**changes)
    expected = torchs(plan)
    for name, tensor in ours(plan).items():
        assert torch.allclose(tensor, expected[name], rtol=2e-6, atol=2e-6), name
        assert (tensor - weights()[name]).abs().max() > 1e-3


@pytest.mark.parametrize("changes", RULES)
def test_holding_is_no_gradient(changes: dict[str, Any]) -> None:
    plan = rule(silent=SilentMomentum.HOLD, **changes)
    expected, coasting = torchs(plan, hold=True), ours(rule(**changes))
    found = ours(plan)
    for name, tensor in found.items():
        assert torch.allclose(tensor, expected[name], rtol=2e-6, atol=2e-6), name
    if changes.get("optimizer") is not Optimizer.SGD or "weight_decay" in changes:
        assert any((found[name] - coasting[name]).abs().max() > 1e-4 or "beta1" in changes for name in found)


def test_looking_in_between_changes_next_to_nothing() -> None:
    often = ours(rule(), settled=range(STEPS))
    for name, tensor in ours(rule()).items():
        assert torch.allclose(tensor, often[name], rtol=1e-6, atol=1e-6)


def test_what_never_fires_has_no_state() -> None:
    def kept(updates: Updates) -> int:
        return sum(moment.numel() for moments in updates._moments for moment in moments.values())

    assert kept(Updates(weights(), GROUPS, rule(), [1, 0])) == 17
    assert kept(Updates(weights(), GROUPS, rule(optimizer=Optimizer.MOMENTUM, momentum=0.9), [0, 3])) == 4
    assert kept(Updates(weights(), GROUPS, rule(optimizer=Optimizer.SGD), [3, 3])) == 0


def test_an_update_has_the_length_of_its_scale() -> None:
    for scale, length in ((UpdateScale.UNIT, 1.0), (UpdateScale.ROOT_DIMENSION, 17**0.5)):
        found = weights()
        plan = rule(optimizer=Optimizer.SGD, learning_rate=1.0, update_scale=scale)
        Updates(found, GROUPS, plan, [1, 1]).apply(0, 0, along(0, 0), -1.0)
        moved = torch.cat([(found[name] - weights()[name]).flatten() for name in GROUPS[0]])
        assert float(moved.norm()) == pytest.approx(length, rel=1e-5)
        assert torch.equal(found["c"], weights()["c"])


@pytest.mark.parametrize("changes", [{"steps": 0}, {"learning_rate": 0.0}, {"beta1": 1.0}, {"weight_decay": 100.0}])
def test_rules_that_are_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        rule(**changes)
