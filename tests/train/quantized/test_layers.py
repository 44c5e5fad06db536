"""Quantized layers in whole networks, and what the engine sees of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional

from privctl.domain.errors import CommandError
from privctl.train.clipping import Clipping, PerExample
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.quantized.random_bits import Role, RoundingSite
from privctl.train.quantized.rounding import round_rows
from privctl.train.settings.choices import FormatName
from tests.few import few
from tests.train.clipping.support import (
    Batch,
    Losses,
    causal,
    classified,
    clipped_sum,
    distance,
    length,
    looped,
    squared,
    tokens,
)
from tests.train.clipping.test_families import gpt2
from tests.train.quantized.support import SEED, Single, Twice, alone, bert, quantized, resnet, shaken, together

LUQ = FORMATS[FormatName.LUQ_FP4]
KEYS = [5, 1 << 63, 0, 77]


def imaged(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


LABELS = torch.tensor([0, 1, 1, 0])
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Losses, Batch]] = {
    "gpt2": (gpt2, causal, tokens(4, 9, 40)),
    "gpt2 untied": (lambda: gpt2(tie_word_embeddings=False), causal, tokens(4, 9, 40)),
    "bert": (bert, classified, {**tokens(4, 9, 40), "labels": LABELS}),
    "resnet": (resnet, imaged, {"x": torch.linspace(-9, 9, 768).sin().view(4, 3, 8, 8).double(), "labels": LABELS}),
}


@pytest.mark.parametrize("name", few(FormatName, 0, 2))
@pytest.mark.parametrize("network", few(NETWORKS, 0, 2, 3))
def test_norms_and_clipped_sums_are_those_of_the_quantized_computation(network: str, name: FormatName) -> None:
    make, losses, batch = NETWORKS[network]
    model = shaken(make())
    layers = quantized(model, name)
    expected = alone(layers, losses, batch, KEYS)
    norms = torch.tensor([length(g) for g in expected], dtype=torch.float64)
    clip = float(norms.median())
    found, result = together(layers, losses, batch, KEYS, clip)
    torch.testing.assert_close(result.norms, norms, rtol=1e-6, atol=0)
    # The engine keeps within the clip norm by some 10^-6, and what it checks and adds is float64 here.
    assert distance(found, clipped_sum(expected, clip)) < 2e-5
    unquantized = torch.tensor([length(g) for g in looped(model, losses, batch)])
    assert float((result.norms / unquantized - 1).abs().max()) > 1e-3  # what would be seen were nothing rounded


def test_the_engine_sees_rounded_factors_whichever_was_there_first() -> None:
    model = shaken(gpt2())
    batch = tokens(4, 9, 40)
    found = []
    for first in (True, False):
        layers = quantized(model) if first else None
        with PerExample(model, Clipping(norm=1.0)) as engine:
            layers = layers or quantized(model)
            engine.verify(lambda: causal(model, batch))
            with layers.active(KEYS):
                found.append(engine.accumulate(lambda: causal(model, batch)).norms)
    assert torch.equal(*found)


@pytest.mark.parametrize("by_keyword", [False, True])
def test_all_three_products_have_rounded_factors(by_keyword: bool) -> None:
    """FP8 to nearest, so that the factors can be written down; weights require gradients, as in plain training."""
    layer = nn.Linear(6, 4)
    model = Single(layer)
    layers = quantized(model, FormatName.FP8)
    form = layers.format
    x, g = torch.randn(2, 3, 6, requires_grad=True), torch.randn(2, 3, 4)
    with layers.active([1, 2]):
        output = layer(input=x) if by_keyword else model(x)
        output.backward(g)
    inputs = round_rows(form.inputs, x.detach().view(6, 6))
    weight = round_rows(form.weights, layer.weight.detach().view(1, -1)).view(4, 6)
    gradients = round_rows(form.gradients, g.view(6, 4))
    torch.testing.assert_close(output.detach().view(6, 4), inputs @ weight.T + layer.bias.detach())
    torch.testing.assert_close(x.grad.view(6, 6), gradients @ weight)
    torch.testing.assert_close(layer.weight.grad, gradients.T @ inputs)
    torch.testing.assert_close(layer.bias.grad, gradients.sum(0))
    for plain, exact in ((inputs, x.view(6, 6)), (weight, layer.weight), (gradients, g.view(6, 4))):
        assert float((plain - exact.detach()).abs().max()) > 1e-3


def test_memory_may_lie_in_any_order() -> None:
    model = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Conv2d(2, 3, 3))
    layers = quantized(model)
    for layer, x in ((model[0], torch.randn(3, 6, 5).mT), (model[1], torch.randn(3, 7, 7, 2).permute(0, 3, 1, 2))):
        found = []
        for each in (x, x.contiguous()):
            with layers.active([1, 2, 3]):
                output = layer(each)
                found.append([output, *torch.autograd.grad(output.sum(), list(layer.parameters()))])  # expanded ones
        for left, right in zip(*found, strict=True):
            torch.testing.assert_close(left, right)


@pytest.mark.parametrize("make", [lambda: hf.pytorch_utils.Conv1D(4, 6), lambda: nn.Linear(6, 4, bias=False)])
def test_folded_rows_are_their_examples(make: Callable[[], nn.Module]) -> None:
    layers = quantized(Single(make()))
    x = torch.randn(3, 5, 6)
    with layers.active([1, 2, 3]):
        folded = layers.network(x.flatten(0, 1))
        layers._layers["layer"].calls = 0
        assert torch.equal(folded, layers.network(x).flatten(0, 1))
    with layers.active([2]):
        torch.testing.assert_close(layers.network(x[1:2])[0], folded.view(3, 5, 4)[1])


def test_a_step_is_drawn_again_by_its_number() -> None:
    model = shaken(gpt2())
    batch = tokens(4, 9, 40)
    layers = quantized(model)
    first, _ = together(layers, causal, batch, KEYS, 1.0)
    layers.begin(4)
    other, _ = together(layers, causal, batch, KEYS, 1.0)
    again, _ = together(quantized(model), causal, batch, KEYS, 1.0)
    assert distance(other, first) > 1e-2
    assert all(torch.equal(again[name], first[name]) for name in first)
    elsewhere = QuantizedLayers(network=model, format=layers.format, seed=SEED + b"!")
    elsewhere.choose(layers.chosen)
    elsewhere.begin(3)
    assert distance(together(elsewhere, causal, batch, KEYS, 1.0)[0], first) > 1e-2


def test_micro_batches_of_a_step_have_one_rounded_weight_and_no_common_words() -> None:
    model = shaken(nn.Sequential(nn.Linear(8, 4)))
    layers = quantized(model)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    kept, outputs = [], []
    for key in (1, 2, 1):
        with layers.active([key]):
            outputs.append(model(x))
            kept.append(layers._layers["0"].weight)
    assert kept[0] is kept[1]
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
    with torch.no_grad():
        model[0].weight.mul_(2)
    layers.begin(4)
    with layers.active([1]):
        model(x)
        assert not torch.equal(layers._layers["0"].weight, kept[0])


def test_what_is_multiplied_is_rounded_with_words_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of two factors that were rounded alike would not average out of their product."""
    places = []

    def rounded(quantizer: Any, values: Tensor, words: Any, keys: Any, place: RoundingSite, memory: Any) -> Tensor:
        places.append(place)
        return values

    monkeypatch.setattr("privctl.train.quantized.layers.rounded_examples", rounded)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layers = quantized(model, FormatName.LUQ_FP4)
    layers.begin(0)
    with layers.active([1]):
        model(torch.ones(1, 3)).sum().backward()
    assert sorted(places, key=repr) == sorted((RoundingSite(i, 0, role) for i in (0, 1) for role in Role), key=repr)


@pytest.mark.slow
def test_rounded_gradients_are_right_on_average() -> None:
    """The mean over steps of a quantized layer's gradients is the plain one, by z over the entries."""
    model = nn.Sequential(nn.Linear(6, 4))
    layers = quantized(model, FormatName.LUQ_FP4)
    x = torch.randn(2, 3, 6)
    g = torch.randn(2, 3, 4)

    def gradient() -> Tensor:
        found: Tensor = torch.autograd.grad((model(x) * g).sum(), model[0].weight)[0]
        return found

    found = []
    for step in range(800):
        layers.begin(step)
        with layers.active([1, 2]):
            found.append(gradient())
    all_of_them = torch.stack(found).double()
    errors = all_of_them.std(0) / len(found) ** 0.5
    assert float(((all_of_them.mean(0) - gradient()) / errors).abs().max()) < 5
    assert float(((all_of_them.mean(0) - 0.95 * gradient()) / errors).abs().max()) > 10  # planted: a twentieth short


def test_outside_its_block_the_network_is_itself() -> None:
    model = shaken(gpt2())
    before = {name: p.clone() for name, p in model.named_parameters()}
    batch = tokens(2, 9, 40)
    plain = causal(model, batch)
    layers = quantized(model)
    with pytest.raises(ZeroDivisionError), layers.active([1, 2]):
        assert not torch.equal(causal(model, batch), plain)
        raise ZeroDivisionError
    assert torch.equal(causal(model, batch), plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_only_the_chosen_layers_are_quantized() -> None:
    model = shaken(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    layers = quantized(model)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    for chosen in ({"0"}, {"1"}, set(), {"0", "1"}):
        layers.choose(frozenset(chosen))
        assert layers.chosen == chosen
        with layers.active([1, 2]):
            first = model[0](x)
            second = model[1](x)
        assert torch.equal(first, model[0](x)) == ("0" not in chosen)
        assert torch.equal(second, model[1](x)) == ("1" not in chosen)
    with pytest.raises(CommandError, match="'2' is no layer that can be quantized; .* such as 0"):
        layers.choose(frozenset({"0", "2"}))


def test_which_layers_there_are() -> None:
    names = QuantizedLayers(network=gpt2(), format=FORMATS[FormatName.INT4], seed=SEED).names
    parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    # The output layer is tied to the embedding: its product counts, the lookup does not.
    assert names == (*(f"transformer.h.{i}.{part}" for i in (0, 1) for part in parts), "lm_head")
    others = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8), Rescaled(8, 8))
    assert QuantizedLayers(network=others, format=LUQ, seed=SEED).names == ("1",)


class Rescaled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_tied_embedding_is_looked_up_as_it_is() -> None:
    model: Any = shaken(gpt2())
    layers = quantized(model)
    ids = tokens(2, 9, 40)["input_ids"]
    with layers.active([1, 2]):
        assert torch.equal(model.transformer.wte(ids), model.transformer.wte.weight[ids])


@pytest.mark.parametrize("network", ["gpt2", "bert"])
def test_gradient_checkpointing_draws_the_same_words_again(network: str) -> None:
    make, losses, batch = NETWORKS[network]
    model: Any = shaken(make()).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    layers = quantized(model)
    plain, _ = together(layers, losses, batch, KEYS, 0.5)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again, _ = together(layers, losses, batch, KEYS, 0.5)
    assert distance(again, plain) < 1e-9


def test_a_layer_that_is_called_twice() -> None:
    model = shaken(Twice(saving=False))
    layers = quantized(model)
    batch = {"x": torch.randn(4, 5, 8, dtype=torch.float64)}
    expected = alone(layers, squared, batch, KEYS)
    found, _ = together(layers, squared, batch, KEYS, 0.5)
    assert distance(found, clipped_sum(expected, 0.5)) < 1e-5
    with layers.active(KEYS):
        x = batch["x"]
        assert not torch.equal(model.layer(x), model.layer(x))  # the second call has words of its own


class Patches(nn.Module):
    """Owns a parameter beside its convolution, as the embeddings of vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.token = nn.Conv2d(3, 8, 4, stride=4), nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), self.projection(x).flatten(2).mT], 1)


class Head(nn.Module):
    """A bias of its own makes the engine run it again; the activation replaces its own ``forward`` for good."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act, self.bias = nn.Linear(8, 4), nn.Tanh(), nn.Parameter(torch.zeros(4))
        self.act.forward = torch.tanh  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x)) + self.bias


def test_a_module_that_was_run_again_without_quantization() -> None:
    model = shaken(nn.Sequential(nn.Linear(8, 8), Head()))
    layers, batch = quantized(model), {"x": torch.randn(4, 8, dtype=torch.float64)}
    expected = alone(layers, squared, batch, KEYS)
    found, _ = together(layers, squared, batch, KEYS, 0.5)
    assert distance(found, clipped_sum(expected, 0.5)) < 1e-5


def test_modules_that_the_engine_runs_again() -> None:
    model = shaken(nn.Sequential(Patches(), nn.Linear(8, 4)))
    layers = quantized(model)
    batch = {"x": torch.randn(4, 3, 8, 8, dtype=torch.float64)}
    expected = alone(layers, squared, batch, KEYS)
    found, _ = together(layers, squared, batch, KEYS, 0.5)
    assert distance(found, clipped_sum(expected, 0.5)) < 1e-5


@pytest.mark.parametrize("name", FormatName)
def test_quantized_layers_agree_under_autocast(name: FormatName) -> None:
    """Factors are rounded in the precision they are multiplied in, and the engine's sum is autograd's."""
    model = shaken(gpt2()).float()
    batch = tokens(4, 9, 40)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return causal(model, batch)

    layers = quantized(model, name)
    found, result = together(layers, losses, batch, KEYS, 1e6)
    assert not result.shorter.any()
    parameters = dict(model.named_parameters())
    with layers.active(KEYS):
        expected = torch.autograd.grad(losses(model, batch).sum(), list(parameters.values()))
    assert distance(found, dict(zip(parameters, expected, strict=True))) < 0.02


def test_inputs_under_autocast_lie_on_the_grid() -> None:
    layer = nn.Linear(64, 4)
    layers = quantized(Single(layer))
    inputs: list[Tensor] = []
    with layers.active([1]), torch.autocast("cpu", torch.bfloat16):
        handle = layer.register_forward_pre_hook(lambda m, arguments: inputs.append(arguments[0]))
        layer(torch.randn(1, 5, 64))
        handle.remove()
    assert inputs[0].dtype == torch.bfloat16
    exponents = (inputs[0].float() / inputs[0].float().abs().amax(-1, keepdim=True)).abs().log2()
    assert torch.equal(exponents[exponents.isfinite()], exponents[exponents.isfinite()].round())


def test_a_frozen_layer_passes_rounded_gradients_on() -> None:
    model = shaken(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))
    model[1].requires_grad_(False)
    layers = quantized(model)
    batch = {"x": torch.randn(4, 5, 8, dtype=torch.float64)}
    expected = alone(layers, squared, batch, KEYS)
    found, _ = together(layers, squared, batch, KEYS, 0.5)
    assert set(found) == {"0.weight", "0.bias"}
    assert distance(found, clipped_sum(expected, 0.5)) < 1e-5
