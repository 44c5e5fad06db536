"""What the engine promises as a whole: soundness, refusals, and leaving the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from privctl.domain.errors import CommandError, InputError
from privctl.train.clipping import Clipping, PerExample, check, engine, rules
from privctl.train.clipping.sinks import AddingSink, KeepingSink, MeasuringSink
from privctl.train.clipping.terms import Dense, GradientTerm
from privctl.train.settings.choices import ClippingStyle
from tests.train.clipping.support import (
    agree,
    causal,
    clipped_sum,
    distance,
    length,
    looped,
    run,
    squared,
    tokens,
)
from tests.train.clipping.test_families import gpt2


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 4))


def bf16(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return causal(model, batch)


def test_clipped_gradients_are_added_and_the_model_is_left_alone() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    x = torch.randn(5, 7, 8)
    once, _ = run(model, squared, {"x": x}, 0.5)
    assert "0.weight" not in once
    with PerExample(model, Clipping(norm=0.5)) as clipped:
        for weight in (0.5, 1.5, 1.0):
            clipped.accumulate(lambda: squared(model, {"x": x}), weight=weight)
        assert [p.requires_grad for p in model.parameters()] == before
    found = {name: p.grad for name, p in clipped.trainable.items()}
    assert distance(found, {name: 3 * g for name, g in once.items()}) < 1e-6
    assert model[0].weight.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    squared(model, {"x": x}).sum().backward()


@pytest.mark.parametrize("frozen", ["transformer.wte", "transformer.h.0", "transformer.h.1.attn", "transformer"])
def test_partially_frozen(frozen: str) -> None:
    model = gpt2(tie_word_embeddings=False).eval()
    model.get_submodule(frozen).requires_grad_(False)
    agree(model, causal, tokens(4, 9, 40))


class Adapted(nn.Module):
    """A frozen layer and a low-rank way round it, as LoRA has."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_adapters_of_a_frozen_model_are_clipped() -> None:
    model = gpt2().requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Adapted(block.attn.c_attn, 16, 48)
    agree(model.eval(), causal, tokens(4, 9, 40))


def test_gradient_checkpointing_changes_nothing() -> None:
    model = gpt2(embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0).train()
    plain, _ = run(model, causal, tokens(4, 9, 40), 0.5)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    agree(model, causal, tokens(4, 9, 40))
    again, _ = run(model, causal, tokens(4, 9, 40), 0.5)
    assert distance(again, plain) < 1e-5


def test_reentrant_checkpointing_is_refused() -> None:
    model = gpt2().train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(InputError, match="use_reentrant=False"):
        run(model, causal, tokens(4, 9, 40), 0.5)
    assert all(p.requires_grad for p in model.parameters())


def test_inputs_are_not_kept_through_a_checkpoint() -> None:
    inner = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    live: list[int] = []

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        kept: set[int] = set()

        def pack(t: Tensor) -> Tensor:
            if t.numel():  # torch 2.11 keeps an empty one beside
                kept.add(t.data_ptr())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            output = checkpoint(model, batch["x"], use_reentrant=False)
        live.append(len(kept))
        return output.square().sum((1, 2))

    agree(inner, losses, {"x": torch.randn(3, 5, 8)})
    assert live[-1] <= 1


@pytest.mark.parametrize("tied", [True, False])
def test_clipping_agrees_under_autocast(tied: bool) -> None:
    model = gpt2(tie_word_embeddings=tied).eval()
    batch = tokens(4, 9, 40)
    expected = looped(model, causal, batch)
    clip = sorted(map(length, expected))[1] * 1.001
    found, _ = run(model, bf16, batch, clip)
    assert distance(found, clipped_sum(expected, clip)) < 0.05


@pytest.mark.parametrize("losses", [causal, pytest.param(bf16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("style", ClippingStyle)
def test_no_clipped_gradient_is_longer_than_the_clip_norm(losses: Any, style: ClippingStyle) -> None:
    model = gpt2().eval()
    batch = tokens(6, 15, 40)
    for i in range(6):
        for clip in (1e-3, 0.37):
            row = {name: values[i : i + 1] for name, values in batch.items()}
            found, result = run(model, losses, row, clip, style=style)
            assert length(found) <= clip
            assert result.shorter.all()
            if style is ClippingStyle.FLAT:
                assert length(found) > clip * (1 - 1e-4)


def test_cancelling_positions_stay_within_the_clip_norm() -> None:
    """The gradients of positions nearly cancel, so that rounding is large beside what is left."""
    model = nn.Linear(64, 32, bias=False)
    x = torch.randn(1, 1, 64).expand(1, 40, 64) + 1e-4 * torch.randn(1, 40, 64)
    signs = torch.tensor([1.0, -1.0]).repeat(20)[None, :, None]
    for scale in (1.0, 1e3):
        found, _ = run(model, lambda m, b: (m(b["x"]) * signs).sum((1, 2)), {"x": scale * x}, 1e-3, checked=False)
        assert length(found) <= 1e-3


def test_automatic_clipping_is_normalization() -> None:
    model = mlp()
    batch = {"x": torch.randn(5, 7, 8)}
    each = looped(model, squared, batch)
    expected = {name: sum(0.5 * g[name] / (length(g) + 0.01) for g in each) for name in each[0]}
    found, result = run(model, squared, batch, 0.5, style=ClippingStyle.AUTOMATIC)
    assert distance(found, expected) < 1e-5
    assert result.shorter.all()


def test_layers_share_the_clip_norm() -> None:
    model = mlp()
    batch = {"x": torch.randn(5, 7, 8)}
    each = looped(model, squared, batch)
    found, _ = run(model, squared, batch, 0.5, style=ClippingStyle.PER_LAYER)
    for layer in ("0", "2", "3"):
        own = [{n: g for n, g in one.items() if n.startswith(layer)} for one in each]
        expected = clipped_sum(own, 0.5 / math.sqrt(3))
        assert distance({name: found[name] for name in expected}, expected) < 1e-5


def test_dropout_is_allowed_in_training_mode() -> None:
    model = gpt2(embd_pdrop=0.3, resid_pdrop=0.3, attn_pdrop=0.3).train()
    batch = tokens(4, 9, 40)

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(5)
        return causal(model, batch)

    norms = []
    for i in range(4):
        own = torch.autograd.grad(losses(model, batch)[i], list(model.parameters()))
        norms.append(torch.stack([g.norm() for g in own]).norm().double())
    _, result = run(model, losses, batch, 0.5)
    torch.testing.assert_close(result.norms, torch.stack(norms), rtol=1e-4, atol=0)


def test_float64_models() -> None:
    agree(mlp().double(), squared, {"x": torch.randn(5, 7, 8, dtype=torch.float64)}, tolerance=1e-5)


class Borrows(nn.Module):
    """Uses a layer's weight without calling the layer; ``when`` says whether."""

    def __init__(self) -> None:
        super().__init__()
        self.lender, self.own = nn.Linear(8, 8), nn.Linear(8, 8)
        self.when = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.own(x)
        return functional.linear(x, self.lender.weight) if self.when else x


def test_parameters_used_out_of_sight_are_refused() -> None:
    model, x = Borrows(), torch.randn(3, 5, 8)
    with pytest.raises(InputError, match="parameter 'lender.weight' has another gradient than autograd's"):
        run(model, squared, {"x": x}, 1.0, promote=False)
    with pytest.raises(InputError, match="a parameter is used outside the model, as in a penalty on weights"):
        run(model, lambda m, b: squared(m, b) + m.own.weight.sum(), {"x": x}, 1.0)
    assert all(p.grad is None for p in model.parameters())
    model.when = False
    with PerExample(model, Clipping(norm=1.0), may_promote=False) as clipped:
        clipped.accumulate(lambda: squared(model, {"x": x}))
        assert float(model.lender.weight.grad.abs().sum()) == 0
        model.when = True
        with pytest.raises(InputError, match="parameter 'lender.weight' has another gradient"):
            clipped.accumulate(lambda: squared(model, {"x": x}))
        model.lender.weight.requires_grad_(True)


def test_a_network_is_verified_beforehand_and_then_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = mlp(), {"x": torch.randn(5, 7, 8)}
    plain, _ = run(model, squared, batch, 0.5)
    with PerExample(model, Clipping(norm=0.5)) as clipped:
        clipped.verify(lambda: squared(model, batch))
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        monkeypatch.setattr(check, "reference", None)  # whoever calls it now fails
        clipped.verify(lambda: squared(model, batch))
        clipped.accumulate(lambda: squared(model, batch))
    assert distance({name: p.grad for name, p in clipped.trainable.items()}, plain) < 1e-6


def test_mixed_examples_are_refused() -> None:
    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            return x - x.mean(0, keepdim=True)

    with pytest.raises(InputError, match="has another gradient than autograd's, .* mixed"):
        run(Contrast(), squared, {"x": torch.randn(3, 5, 8)}, 1.0, promote=False)
    with pytest.raises(InputError, match=r"the model as a whole \(Contrast\) gives .* one by one, .* mixed"):
        run(Contrast(), squared, {"x": torch.randn(3, 5, 8)}, 1.0)


Terms = dict[str, list[GradientTerm]]


def altered(monkeypatch: pytest.MonkeyPatch, alter: Callable[[Terms], object]) -> None:
    """Have ``alter`` change what the recorder hands on of each use."""

    def planted(sink: type[Any]) -> Callable[..., None]:
        receive = sink.receive

        def changed(self: Any, names: Any, terms: Terms) -> None:
            alter(terms)
            receive(self, names, terms)

        return changed

    for sink in (KeepingSink, MeasuringSink, AddingSink):
        monkeypatch.setattr(sink, "receive", planted(sink))


def test_a_skipped_layer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: one layer's gradients are left out of norm and sum."""
    altered(monkeypatch, lambda terms: terms.pop("2.weight", None))
    with pytest.raises(AssertionError):
        agree(mlp(), squared, {"x": torch.randn(5, 7, 8)}, checked=False)
    with pytest.raises(InputError, match=r"parameter '2.weight' has another gradient"):
        run(mlp(), squared, {"x": torch.randn(5, 7, 8)}, 1.0, promote=False)


def test_exchanged_examples_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: one layer has two examples' gradients the wrong way round, which no plain sum shows."""
    order = torch.tensor([0, 2, 1, 3, 4])

    def confuse(terms: Terms) -> None:
        if "2.weight" in terms:
            terms["2.weight"] = [Dense(term.example_gradients(slice(None))[order]) for term in terms["2.weight"]]

    altered(monkeypatch, confuse)
    with pytest.raises(InputError, match=r"parameter '2.weight' has another gradient"):
        run(mlp(), squared, {"x": torch.randn(5, 7, 8)}, 1.0, promote=False)


def test_sketches_are_small_linear_and_as_long_as_what_they_stand_for() -> None:
    left, right = torch.randn(700, 300), torch.randn(700, 300)
    torch.testing.assert_close(
        check.sketch(left) - check.sketch(right), check.sketch(left - right), rtol=1e-3, atol=1e-3
    )
    assert len(check.sketch(left)) < left.numel() / 50
    assert float(check.sketch(left).norm() / left.norm()) == pytest.approx(1, abs=0.1)
    alone = torch.zeros(700, 300)
    for place in range(0, 210_000, 1009):
        alone.zero_().view(-1)[place] = 1.0
        assert 0.1 < float(check.sketch(alone).norm()) < 3
    assert torch.equal(check.sketch(left[0]), left[0])


def test_the_check_keeps_no_gradient_and_no_hook() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    trainable = dict(model.named_parameters())
    found = check.reference(squared(model, {"x": torch.randn(3, 4, 256)}), trainable)
    assert set(found.sketches) == set(trainable)
    assert sum(len(sketch) for sketch in found.sketches.values()) < sum(p.numel() for p in model.parameters()) / 50
    assert all(p.grad is None and not p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_refused(value: float) -> None:
    model, x = mlp(), torch.randn(5, 7, 8)
    with PerExample(model, Clipping(norm=1.0)) as clipped:
        clipped.accumulate(lambda: squared(model, {"x": x}))
        before = [p.grad.clone() for p in model.parameters()]
        x[3, 2, 1] = value
        with pytest.raises(InputError, match="row 3 of the batch has a loss or gradient that is not finite"):
            clipped.accumulate(lambda: squared(model, {"x": x}))
        assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.BatchNorm1d(8), "(BatchNorm1d) normalizes each example by the others of its batch; put it in"),
        (lambda: nn.BatchNorm1d(8, track_running_stats=False).eval(), "with running statistics that are public"),
        (lambda: nn.Linear(8, 8).bfloat16(), "load it as float32 and use autocast"),
        (lambda: nn.ReLU(), "has no parameter that requires a gradient"),
    ],
)
def test_models_that_cannot_work_are_refused(module: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(InputError) as caught:
        PerExample(nn.Sequential(module()), Clipping(norm=1.0))
    assert message in str(caught.value)


def test_frozen_batch_norm_in_evaluation_mode_is_fine() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval().requires_grad_(False))
    agree(model, squared, {"x": torch.randn(4, 3, 5, 5)})
    with PerExample(model, Clipping(norm=1.0)) as clipped:
        model.train()
        with pytest.raises(InputError, match="normalizes each example by the others"):
            clipped.accumulate(lambda: squared(model, {"x": torch.randn(4, 3, 5, 5)}))


def test_losses_of_another_shape_are_refused() -> None:
    model, x = mlp(), torch.randn(5, 7, 8)
    for losses in (
        lambda m, b: squared(m, b).mean(),
        lambda m, b: squared(m, b)[:3],
        lambda m, b: squared(m, b).detach(),
    ):
        with pytest.raises(InputError, match="losses"):
            run(model, losses, {"x": x}, 1.0)
    with pytest.raises(InputError, match="the model saw 5 rows and 35 losses came back"):
        run(nn.Sequential(nn.Flatten(0, 1), nn.Linear(8, 12)), squared, {"x": x.view(5, 7, 1, 8)}, 1.0)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, 1e-23, 1e20])
def test_clip_norms_are_numbers_that_float32_measures(norm: float) -> None:
    with pytest.raises(CommandError, match="the clip norm"):
        Clipping(norm=norm)


def test_every_rule_is_for_a_layer_type_and_names_are_exported() -> None:
    assert all(issubclass(layer, nn.Module) for layer in rules.RULES)
    assert engine.PerExample is PerExample
