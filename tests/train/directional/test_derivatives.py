"""Every method against plain autograd, one example at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from privctl.domain.errors import InputError
from privctl.train.directional import Derivatives, agreement, cost, direction, forward, passes
from privctl.train.directional.queries import FiredGroup
from privctl.train.settings.choices import DerivativeMethod
from tests.few import few
from tests.train.clipping.support import causal, classified, squared, tokens
from tests.train.clipping.test_engine import Adapted
from tests.train.clipping.test_families import gpt2, resnet
from tests.train.directional.support import FAMILIES, Case, case, grouped_norms, groups, product, state
from tests.work import calls

EXACT = (
    DerivativeMethod.BACKWARD, DerivativeMethod.PARTIAL, DerivativeMethod.FORWARD, DerivativeMethod.PRODUCTS
)  # fmt: skip
METHODS = (*EXACT, DerivativeMethod.DIFFERENCE, DerivativeMethod.AUTO)


def near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Relative to the largest derivative of the group, for one of them may be next to nothing."""
    scale = expected.abs().amax(0)
    return found.dtype == torch.float64 and bool(((found - expected).abs() <= tolerance * scale).all())


def tolerance(method: DerivativeMethod, family: str = "") -> float:
    """Differences cross the kinks of a ResNet's ReLUs, each of which bends the loss."""
    if method in (DerivativeMethod.DIFFERENCE, DerivativeMethod.AUTO):
        return 0.2 if family == "resnet" else 2e-2
    return 1e-4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", few(FAMILIES, 0, 1))
def test_derivatives_of_each_example_are_those_of_autograd(family: str, method: DerivativeMethod) -> None:
    setup = case(family)
    before = state(setup.model)
    found = Derivatives(setup.model, method).per_example(setup.losses_of, setup.fired, setup.directions())
    assert state(setup.model) == before
    assert near(found, setup.expected(), tolerance(method, family))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", few(FAMILIES, 0, 3))
def test_sums_over_the_batch(family: str, method: DerivativeMethod) -> None:
    setup = case(family)
    before = state(setup.model)
    found = Derivatives(setup.model, str(method)).batch(setup.losses_of, setup.fired, setup.directions())
    assert state(setup.model) == before
    expected = setup.expected()
    # a sum in which examples all but cancel is no more exact than they are
    assert ((found - expected.sum(0)).abs() <= tolerance(method, family) * expected.abs().sum(0)).all()


@pytest.mark.parametrize("method", EXACT)
def test_against_torch_func(method: DerivativeMethod) -> None:
    setup = case("gpt2")
    setup.model.set_attn_implementation("eager")
    parameters = {name: p.detach() for name, p in setup.model.named_parameters()}

    def loss(values: dict[str, Tensor], ids: Tensor) -> Tensor:
        logits = functional_call(setup.model, values, (), {"input_ids": ids[None], "use_cache": False}).logits[0, :-1]
        return functional.cross_entropy(logits, ids[1:])

    each = [grad(loss)(parameters, ids) for ids in setup.batch["input_ids"]]
    for fired, along in zip(setup.fired, setup.directions(), strict=True):
        found = Derivatives(setup.model, method).per_example(setup.losses_of, [fired], [along])
        expected = [product(gradients, along) for gradients in each]
        torch.testing.assert_close(found[:, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-6)


def test_the_checks_notice_another_direction() -> None:
    setup = case("gpt2")
    shifted = [setup.directions(step=1)[0], *setup.directions()[1:]]
    found = Derivatives(setup.model, "partial").per_example(setup.losses_of, setup.fired, shifted)
    assert not near(found[:, :1], setup.expected()[:, :1], 0.5)
    assert near(found[:, 1:], setup.expected()[:, 1:], 1e-4)


def test_the_checks_notice_a_forgotten_use_of_a_tied_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("gpt2")
    tied = [group.parameters for group in setup.fired].index(("transformer.wte.weight",))
    others = [i for i in range(len(setup.fired)) if i != tied]
    monkeypatch.setattr(forward, "functional_call", partial(functional_call, tie_weights=False))
    found = Derivatives(setup.model, "forward").per_example(setup.losses_of, setup.fired, setup.directions())
    assert not near(found[:, tied], setup.expected()[:, tied], 0.1)
    assert near(found[:, others], setup.expected()[:, others], 1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_dropout_is_the_same_in_all_passes(method: DerivativeMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("gpt2")
    model = setup.model.train()
    directions = setup.directions()
    torch.manual_seed(3)
    expected = Derivatives(model, DerivativeMethod.PARTIAL).batch(setup.losses_of, setup.fired, directions)
    afterwards = torch.get_rng_state()

    def again() -> Tensor:
        torch.manual_seed(3)
        return Derivatives(model, method).batch(setup.losses_of, setup.fired, directions)

    assert ((again() - expected).abs() <= 3e-2 * expected.abs().max()).all()
    assert torch.equal(torch.get_rng_state(), afterwards)
    if method in (DerivativeMethod.FORWARD, DerivativeMethod.DIFFERENCE):
        monkeypatch.setattr(passes.Randomness, "rewind", lambda self: None)
        assert not ((again() - expected).abs() <= 3e-2 * expected.abs().max()).all()


@pytest.mark.parametrize("method", METHODS)
def test_adapters_on_frozen_layers(method: DerivativeMethod) -> None:
    torch.manual_seed(0)
    model = gpt2().requires_grad_(False).eval()
    for block in model.transformer.h:
        block.mlp.c_fc = Adapted(block.mlp.c_fc, 16, 64)
    fired = groups(("transformer.h.0.mlp.c_fc.down.weight", "transformer.h.1.mlp.c_fc.up.weight"))
    setup = Case(model=model, losses=causal, batch=tokens(4, 9, 40), fired=fired)
    before = state(model)
    found = Derivatives(model, method).per_example(setup.losses_of, fired, setup.directions())
    assert near(found, setup.expected(), tolerance(method))
    assert state(model) == before


@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_tensor_may_be_asked_for(method: DerivativeMethod) -> None:
    setup = case("gpt2")
    expected = setup.expected()
    setup.model.requires_grad_(False)
    before = state(setup.model)
    found = Derivatives(setup.model, method).per_example(setup.losses_of, setup.fired, setup.directions())
    assert near(found, expected, tolerance(method))
    assert state(setup.model) == before


class Idle(nn.Module):
    """Has a parameter that is not used, and one of which the losses do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_without_use_has_derivative_zero(method: DerivativeMethod) -> None:
    model = Idle()
    x = torch.randn(4, 3)
    setup = Case(model=model, losses=squared, batch={"x": x}, fired=groups(("unused.weight",), ("used.weight",)))
    derivatives = Derivatives(model, method)
    found = derivatives.per_example(setup.losses_of, setup.fired, setup.directions())
    assert (found[:, 0] == 0).all()
    assert (found[:, 1] != 0).all()
    assert float(derivatives.batch(setup.losses_of, setup.fired[:1], setup.directions()[:1])) == 0
    model.used.requires_grad_(False)
    assert (derivatives.per_example(setup.losses_of, setup.fired[:1], setup.directions()[:1]) == 0).all()


def test_nothing_fired_runs_nothing() -> None:
    def never() -> Tensor:
        raise AssertionError

    setup = case("bert")
    assert Derivatives(setup.model).batch(never, (), ()).shape == (0,)


def test_a_partial_pass_keeps_no_more_than_it_needs() -> None:
    """What autograd keeps for a late tensor is a small part of what it keeps for all."""

    def kept(method: str) -> int:
        sizes: dict[int, int] = {}
        setup = case("gpt2")

        def losses() -> Tensor:
            def pack(tensor: Tensor) -> Tensor:
                sizes[tensor.data_ptr()] = tensor.numel()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return setup.losses_of()

        Derivatives(setup.model, method).batch(losses, setup.fired[:1], setup.directions()[:1])
        return sum(sizes.values())

    assert kept("partial") < 0.5 * kept("backward")
    assert kept("difference") == kept("forward") == 0


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("transformer.wte.wight",), r"group 7 names the parameter 'transformer.wte.wight', which the model does not"),
        (("lm_head.weight",), r"group 7 names 'lm_head.weight', which is tied to 'transformer.wte.weight'; give that"),
    ],
)
def test_names_that_are_none(names: tuple[str, ...], fault: str) -> None:
    setup = case("gpt2")
    with pytest.raises(InputError, match=fault):
        Derivatives(setup.model).batch(setup.losses_of, [FiredGroup(index=7, parameters=names)], [{}])


def test_settings_that_are_none() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(
        InputError, match="'backwards' is not one of auto, backward, partial, forward, products, difference"
    ):
        Derivatives(model, "backwards")
    with pytest.raises(InputError, match="the step of differences is 0; choose a step between 0 and 1"):
        Derivatives(model, step=0)


def test_directions_that_do_not_fit() -> None:
    setup = case("gpt2")
    derivatives = Derivatives(setup.model)
    with pytest.raises(ValueError, match="4 groups and 3 directions"):
        derivatives.batch(setup.losses_of, setup.fired, setup.directions()[1:])
    with pytest.raises(ValueError, match="and its direction"):
        derivatives.batch(setup.losses_of, setup.fired, setup.directions()[::-1])
    wrong = [{name: entries[:1] for name, entries in each.items()} for each in setup.directions()]
    with pytest.raises(ValueError, match="give it one of its own shape"):
        derivatives.batch(setup.losses_of, setup.fired, wrong)
    with pytest.raises(ValueError, match="no group fired"):
        derivatives.per_example(setup.losses_of, (), ())


@pytest.mark.parametrize("method", METHODS)
def test_losses_that_were_reduced(method: DerivativeMethod) -> None:
    setup = case("bert")
    with pytest.raises(InputError, match=r"the losses have shape \(\), where one an example is needed"):
        Derivatives(setup.model, method).batch(lambda: setup.losses_of().mean(), setup.fired, setup.directions())


class _Opaque(torch.autograd.Function):
    """Twice its input, with a backward pass that is not differentiable and no forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(_Opaque.apply(self.first(x)).tanh())


def test_operations_that_cannot_be_differentiated_so(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    setup = Case(
        model=Opaque(),
        losses=squared,
        batch={"x": torch.randn(4, 3)},
        fired=groups(("first.weight",), ("first.bias", "second.weight"), ("second.bias",)),
    )
    asked = setup.losses_of, setup.fired, setup.directions()
    with pytest.raises(InputError, match="without forward-mode derivative .*; take the method partial or difference"):
        Derivatives(setup.model, "forward").per_example(*asked)
    with pytest.raises(InputError, match="cannot be differentiated twice .*; take the method difference"):
        Derivatives(setup.model, "partial").per_example(*asked)
    monkeypatch.setattr(
        cost,
        "rank_methods",
        lambda *_, per_example: [DerivativeMethod.FORWARD, DerivativeMethod.PARTIAL, DerivativeMethod.DIFFERENCE],
    )
    fresh = Derivatives(setup.model)
    assert near(fresh.per_example(*asked), setup.expected(), 2e-2)
    assert fresh.choose_method(setup.fired, per_example=True) is DerivativeMethod.DIFFERENCE
    assert fresh.choose_method(setup.fired) is DerivativeMethod.FORWARD  # has not been tried for sums
    assert near(fresh.batch(*asked)[None], setup.expected().sum(0)[None], 1e-4)
    assert fresh.choose_method(setup.fired) is DerivativeMethod.PARTIAL


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


@pytest.mark.parametrize(
    "method", [DerivativeMethod.BACKWARD, DerivativeMethod.PARTIAL, DerivativeMethod.DIFFERENCE, DerivativeMethod.AUTO]
)
def test_recurrent_kernels_have_no_forward_mode(method: DerivativeMethod) -> None:
    torch.manual_seed(0)
    fired = groups(("inner.weight_hh_l0",), ("inner.bias_ih_l0", "inner.weight_ih_l0"))
    setup = Case(model=Recurrent(), losses=squared, batch={"x": torch.randn(4, 5, 3)}, fired=fired)
    asked = setup.losses_of, fired, setup.directions()
    with pytest.raises(InputError, match=r"module 'inner' \(LSTM\) runs in a fused kernel"):
        Derivatives(setup.model, "forward").batch(*asked)
    assert near(Derivatives(setup.model, method).per_example(*asked), setup.expected(), tolerance(method))


def test_examples_that_share_statistics_are_refused() -> None:
    model = resnet().train()
    batch = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 1])}
    name = next(n for n, _ in model.named_parameters())
    setup = Case(model=model, losses=classified, batch=batch, fired=groups((name,)))
    for method in METHODS:
        with pytest.raises(InputError, match="normalizes each example by the others of its batch"):
            Derivatives(model, method).per_example(setup.losses_of, setup.fired, setup.directions())
    grouped_norms(model)
    assert near(
        Derivatives(model, "forward").per_example(setup.losses_of, setup.fired, setup.directions()),
        setup.expected(),
        1e-4,
    )


def test_the_method_is_chosen_by_cost() -> None:
    model = gpt2(n_layer=4, tie_word_embeddings=False)
    derivatives = Derivatives(model)
    late, early = (groups((f"transformer.h.{i}.mlp.c_fc.weight",)) for i in (3, 0))
    half = groups(tuple(n for n, _ in model.named_parameters() if n < "transformer.h.3"))
    assert [derivatives.choose_method(fired) for fired in (late, early, half)] == [
        DerivativeMethod.PARTIAL, DerivativeMethod.PARTIAL, DerivativeMethod.DIFFERENCE,
    ]  # fmt: skip
    assert derivatives.choose_method(early * 3) is DerivativeMethod.PARTIAL  # one pass for all
    assert derivatives.choose_method(late, per_example=True) is DerivativeMethod.FORWARD
    assert derivatives.choose_method(early, per_example=True) is DerivativeMethod.DIFFERENCE
    assert Derivatives(model.bfloat16()).choose_method(half) is DerivativeMethod.PARTIAL
    assert Derivatives(model, "backward").choose_method(half) is DerivativeMethod.BACKWARD


def test_work_above_and_in_a_tensor() -> None:
    model = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 4))
    asked = (["0.weight"], ["1.bias"], ["2.weight"], ["3.weight", "2.weight"])
    shares = ((1.0, 0.0), (1.0, 0.0), (0.5, 0.0), (0.5, 0.5))
    expected = [cost.WorkShare(above=above, alone=alone) for above, alone in shares]
    assert cost.work(model, *asked) == expected
    assert [share for group in asked for share in cost.work(model, group)] == expected
    tied = gpt2()
    (share,) = cost.work(tied, ["transformer.wte.weight"])
    assert share.above == 1
    assert share.alone == pytest.approx(40 * 16 / (40 * 16 + 2 * 12 * 16 * 16))


def test_the_network_is_walked_through_once_for_all_groups() -> None:
    model = gpt2(n_layer=4)
    names = [name for name, _ in model.named_parameters()]
    one, many = (
        calls(lambda asked=asked: cost.rank_methods(model, asked, per_example=True))
        for asked in ([names[:1]], [[name] for name in names])
    )
    assert many < 1.5 * one


@pytest.mark.parametrize("family", FAMILIES)
def test_agreement_of_differences(family: str) -> None:
    setup = case(family)
    found = agreement(Derivatives(setup.model, "difference"), setup.losses_of, setup.fired, setup.directions())
    assert (found.count, found.share, found.share_above) == (len(setup.fired), 1, 1)
    assert 0 < found.error < tolerance(DerivativeMethod.DIFFERENCE, family)
    assert found.above == found.count


def test_a_group_norm_may_fire_first_on_channels_last_images() -> None:
    """Torch would crash in the backward pass of a norm whose input needs no gradient, which nothing below it makes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(8 * 16, 2))
    images = torch.randn(5, 3, 6, 6).to(memory_format=torch.channels_last)

    def losses_of() -> Tensor:
        return model(images).logsumexp(1)

    fired = [FiredGroup(index=0, parameters=("1.weight",))]
    along = [direction(b"x", 0, 0, {"1.weight": torch.Size([8])})]
    gradient = torch.autograd.grad(losses_of().sum(), list(model.parameters()))[2]
    expected = float((gradient * along[0]["1.weight"]).sum())
    for method in ("partial", "backward"):
        assert float(Derivatives(model, method).batch(losses_of, fired, along)[0]) == pytest.approx(expected, rel=1e-4)
    each = Derivatives(model, "partial").per_example(losses_of, fired, along)
    assert float(each.sum()) == pytest.approx(expected, rel=1e-4)
