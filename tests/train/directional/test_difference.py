"""What differences promise besides being right: the weights as they were, a step that suits, a floor that is one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.directional import Derivatives, SignAgreement, agreement, difference, reverse
from privctl.train.directional.queries import queries_for
from privctl.train.settings.choices import DerivativeMethod
from tests.train.clipping.support import squared
from tests.train.directional.support import Case, case, groups, state


def test_weights_come_back_when_a_pass_fails() -> None:
    setup = case("gpt2")
    before = state(setup.model)
    calls = []

    def losses() -> Tensor:
        calls.append(state(setup.model) != before)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return setup.losses_of()

    with pytest.raises(KeyboardInterrupt):
        Derivatives(setup.model, "difference").batch(losses, setup.fired, setup.directions())
    assert calls == [True, True]
    assert state(setup.model) == before


def test_taking_the_step_back_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("gpt2")
    before = state(setup.model)

    def subtracted(question: difference.DirectionalQuery, kept: dict[str, Tensor]) -> None:
        distance = difference.distance_along(kept, difference.STEP)
        for name, parameter in question.parameters.items():
            parameter.add_(question.direction[name], alpha=distance)

    monkeypatch.setattr(difference, "_restore", subtracted)
    Derivatives(setup.model, "difference").batch(setup.losses_of, setup.fired, setup.directions())
    assert state(setup.model) != before


def test_coarse_weights_are_refused() -> None:
    model = nn.Linear(3, 2).bfloat16()
    setup = Case(model=model, losses=squared, batch={"x": torch.randn(2, 3).bfloat16()}, fired=groups(("weight",)))
    with pytest.raises(InputError, match=r"parameter 'weight' is torch.bfloat16, .*; load it as float32, or take the"):
        Derivatives(model, "difference").batch(setup.losses_of, setup.fired, setup.directions())


def test_autocast_is_refused_and_avoided() -> None:
    setup = case("gpt2")
    half = groups(tuple(n for n, _ in setup.model.named_parameters() if "wpe" not in n))
    wide = Case(model=setup.model, losses=setup.losses, batch=setup.batch, fired=half)

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return setup.losses_of()

    before = state(setup.model)
    with pytest.raises(
        InputError, match=r"the model runs under autocast to torch.bfloat16, .* take the method partial"
    ):
        Derivatives(setup.model, "difference").batch(losses, wide.fired, wide.directions())
    automatic = Derivatives(setup.model)
    assert automatic.choose_method(wide.fired) is DerivativeMethod.DIFFERENCE
    found = automatic.batch(losses, wide.fired, wide.directions())
    assert automatic.choose_method(wide.fired) is DerivativeMethod.PARTIAL
    assert torch.allclose(found, wide.expected().sum(0), rtol=0.1, atol=0.05)
    assert state(setup.model) == before
    assert not setup.model._forward_pre_hooks
    with torch.autocast("cpu", torch.bfloat16):  # around it all, it can be turned off
        found = Derivatives(setup.model, "difference").batch(setup.losses_of, wide.fired, wide.directions())
    torch.testing.assert_close(found, wide.expected().sum(0), rtol=2e-2, atol=0)


def test_the_distance_follows_the_weights() -> None:
    layer = nn.Linear(400, 100)
    with torch.no_grad():
        layer.weight.normal_(std=0.3)
    parameters = dict(layer.named_parameters())
    alone = difference.distance_along({"weight": layer.weight}, 0.01)
    assert alone == pytest.approx(0.01 * float(layer.weight.detach().norm()))
    # of two tensors the one that bears less decides, so that both together disturb as much as it alone
    with torch.no_grad():
        layer.bias.fill_(3.0)
    entry = difference.distance_along(parameters, 0.01) / math.sqrt(100 * 401)
    assert entry == pytest.approx(0.01 / math.sqrt(1 / 0.3**2 + 1 / 3.0**2), rel=1e-2)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_tensors_of_zeros_move_too(name: str) -> None:
    layer = nn.Linear(16, 3)
    nn.init.zeros_(layer.get_parameter(name))
    setup = Case(model=layer, losses=squared, batch={"x": torch.randn(4, 16)}, fired=groups((name,)))
    found = Derivatives(layer, "difference").per_example(setup.losses_of, setup.fired, setup.directions())
    torch.testing.assert_close(found, setup.expected(), rtol=1e-3, atol=1e-4)


def test_the_error_falls_with_the_square_of_the_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    batch = {"x": torch.randn(4, 6, dtype=torch.float64)}
    setup = Case(model=model, losses=squared, batch=batch, fired=groups(("0.weight",), ("0.bias", "2.weight")))
    exact = Derivatives(setup.model, "backward").batch(setup.losses_of, setup.fired, setup.directions())

    def error(step: float) -> float:
        found = Derivatives(setup.model, "difference", step=step)
        return float((found.batch(setup.losses_of, setup.fired, setup.directions()) - exact).norm())

    assert error(0.02) / error(0.01) == pytest.approx(4, rel=0.1)


def test_what_is_below_the_floor_does_not_matter() -> None:
    """Large losses hide a slope; the floor tells so, and without it the sign would count."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 1)

    def losses() -> Tensor:
        return 1e-6 * squared(layer, {"x": torch.ones(4, 8)}) + 1e3

    setup = Case(model=layer, losses=squared, batch={"x": torch.ones(4, 8)}, fired=groups(("weight",), ("bias",)))
    found = agreement(Derivatives(layer, "difference"), losses, setup.fired, setup.directions())
    assert (found.count, found.above, found.equal) == (2, 0, 0)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_rounding_is_what_losses_are_rounded_by(size: float) -> None:
    """It is measured, not taken from the size of the losses, which may be small because large numbers cancelled."""
    setup = case("gpt2")

    def losses() -> Tensor:
        logits = setup.model(**setup.batch, use_cache=False).logits[:, -1]
        return logits.logsumexp(1) - logits[:, 0] * (1 + size)

    asked = queries_for(setup.model, setup.fired, setup.directions())
    exact = Derivatives(setup.model, "partial").batch(losses, setup.fired, setup.directions())
    tiny = Derivatives(setup.model, "difference", step=1e-4).batch(losses, setup.fired, setup.directions())
    errors = (tiny - exact).abs() / difference.rounding(losses, asked, 1e-4)
    assert 0.1 < float(errors.mean()) < 3
    assert float(errors.max()) < 6


def test_agreements_add_up() -> None:
    one = SignAgreement(count=4, equal=3, above=2, equal_above=2, error=0.1)
    both = one + SignAgreement(count=1, equal=1, above=0, equal_above=0, error=0.6)
    assert (both.count, both.share, both.share_above, both.error) == (5, 0.8, 1.0, pytest.approx(0.2))
    nothing = SignAgreement(count=0, equal=0, above=0, equal_above=0, error=0.0)
    assert nothing + one == one
    assert nothing.share == nothing.share_above == 1


def test_a_wrong_sign_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("llama")
    right = Derivatives.batch

    def wrong(self: Derivatives, *asked: object) -> Tensor:
        found = right(self, *asked)
        return found if self.method is DerivativeMethod.PARTIAL else found * torch.tensor([1, -1, 1])

    monkeypatch.setattr(Derivatives, "batch", wrong)
    found = agreement(Derivatives(setup.model, "difference"), setup.losses_of, setup.fired, setup.directions())
    assert (found.count, found.equal, found.equal_above) == (3, 2, found.above - 1)


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"),
    ],
)
def test_differences_are_taken_where_memory_is_short(fault: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("gpt2")
    before, expected = state(setup.model), setup.expected().sum(0)
    tried: list[int] = []

    def grasping(*_: object) -> Tensor:
        tried.append(1)
        raise fault

    monkeypatch.setattr(reverse, "partial", grasping)
    asked = (setup.losses_of, setup.fired[:1], setup.directions()[:1])
    automatic = Derivatives(setup.model)
    assert automatic.choose_method(setup.fired[:1]) is DerivativeMethod.PARTIAL
    found = [automatic.batch(*asked) for _ in range(2)]
    assert len(tried) == 1
    assert automatic.choose_method(setup.fired[:1]) is DerivativeMethod.DIFFERENCE
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0], expected[:1], rtol=0.02)
    assert state(setup.model) == before
    with pytest.raises(RuntimeError, match="memory"):  # what was asked for by name is not replaced
        Derivatives(setup.model, "partial").batch(*asked)
    monkeypatch.setattr(reverse, "partial", lambda *_: torch.empty(2) @ torch.empty(3))
    with pytest.raises(RuntimeError, match="size"):
        Derivatives(setup.model).batch(*asked)
