"""What examples may not do to each other, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.engine import NotFiniteError
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.quantized import layers as layers_module
from privctl.train.settings.choices import FormatName
from tests.train.clipping.support import (
    Batch,
    Losses,
    causal,
    distance,
    length,
    squared,
    tokens,
)
from tests.train.clipping.test_engine import Borrows
from tests.train.clipping.test_families import gpt2
from tests.train.quantized.support import SEED, Single, Twice, quantized, shaken, together

LUQ = FORMATS[FormatName.LUQ_FP4]
KEYS = [5, 1 << 63, 0, 77]


def coupled(layer: Any, values: Tensor, count: int) -> Tensor:
    """Planted fault: one scale for the whole batch, as the usual quantizers have."""
    return values.reshape(1, 1, -1)


def first_gradient(layers: QuantizedLayers, losses: Losses, batch: Batch, keys: list[int]) -> dict[str, Tensor]:
    """Of row 0 in its batch."""
    parameters = dict(layers.network.named_parameters())
    with layers.active(keys):
        loss = losses(layers.network, batch)[0]
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


@pytest.mark.parametrize("name", FormatName)
@pytest.mark.parametrize("planted", [False, True])
def test_no_example_changes_anothers_gradient(name: FormatName, planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 beside a row with huge activations: with a common scale its own are all rounded away."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    layers = quantized(model, name)
    batch = {"x": torch.randn(3, 5, 8)}
    before = first_gradient(layers, squared, batch, KEYS[:3])
    if planted:
        monkeypatch.setattr(layers_module, "_by_example", coupled)
        layers._forget_weights()
    batch["x"][1] *= 1e4
    after = first_gradient(layers, squared, batch, KEYS[:3])
    if planted:
        assert distance(after, before) > 1e-2
        return
    for each in before:
        assert torch.equal(after[each], before[each])
    # Nor do the others' number and order, their words, or padding behind it.
    longer = torch.cat([batch["x"][:1], 50 * torch.randn(1, 5, 8)], 1)
    for rest, keys in ((batch["x"][:1], KEYS[:1]), (batch["x"][[2, 1, 0, 0]], [9, 8, 7, 6])):
        moved = {"x": torch.cat([batch["x"][:1], rest])}
        assert distance(first_gradient(layers, squared, moved, [KEYS[0], *keys]), before) < 1e-5
    with layers.active(KEYS[:1]):
        padded = model[0](longer)[:, :5]
    with layers.active(KEYS[:1]):
        torch.testing.assert_close(padded, model[0](batch["x"][:1]))


def test_what_is_left_out_moves_the_clipped_sum_by_no_more_than_the_clip_norm() -> None:
    """And with a scale common to the batch it moves it further: the bound that noise is made for fails."""
    model = shaken(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
    x = torch.randn(4, 5, 8, dtype=torch.float64)
    x[3] *= 1e3
    layers = quantized(model)

    def moved() -> float:
        every, _ = together(layers, squared, {"x": x}, KEYS, 1e-3)
        fewer, _ = together(layers, squared, {"x": x[:3]}, KEYS[:3], 1e-3)
        return length({name: every[name] - fewer[name] for name in every})

    assert moved() <= 1e-3 * (1 + 1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_module, "_by_example", coupled)
        layers._forget_weights()
        assert moved() > 1.2e-3


def test_two_calls_and_a_checkpoint_are_refused() -> None:
    layers = quantized(shaken(Twice(saving=True)))
    batch = {"x": torch.randn(4, 5, 8, dtype=torch.float64)}
    with pytest.raises(InputError, match="layer 'layer' is called 2 times and computed again"):
        together(layers, squared, batch, KEYS, 0.5)


@pytest.mark.parametrize("name", FormatName)
def test_examples_that_are_not_finite_are_found_and_no_others(name: FormatName) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    layers = quantized(model, name)
    x = torch.randn(4, 5, 8)
    for value in (torch.nan, torch.inf):
        x[2, 1, 3] = value
        with pytest.raises(NotFiniteError) as caught, PerExample(model, Clipping(norm=1.0)) as engine:
            engine.verify(lambda: squared(model, {"x": torch.randn(4, 5, 8)}))
            with layers.active(KEYS):
                engine.accumulate(lambda: squared(model, {"x": x}))
        assert caught.value.rows == (2,)


def test_parameters_used_out_of_sight_are_refused_or_their_parent_is_taken_as_a_whole() -> None:
    """The check with autograd is made outside the block, and holds for what is inside: the modules are the same."""
    model = Borrows()
    layers = quantized(model)
    batch = {"x": torch.randn(3, 5, 8)}
    found, _ = together(layers, squared, batch, KEYS[:3], 0.5)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row, key in enumerate(KEYS[:3]):
        alone = first_gradient(layers, squared, {"x": batch["x"][[row]]}, [key])
        factor = min(1, 0.5 / length(alone))
        expected = {name: total + factor * alone[name] for name, total in expected.items()}
    assert distance(found, expected) < 1e-5
    with (
        PerExample(model, Clipping(norm=1.0), may_promote=False) as engine,
        pytest.raises(InputError, match="parameter 'lender.weight' has another gradient than autograd's"),
    ):
        engine.verify(lambda: squared(model, batch))
    assert all(p.grad is None for p in model.parameters())
    model.when = False
    with PerExample(model, Clipping(norm=1.0), may_promote=False) as engine:
        engine.verify(lambda: squared(model, batch))
        model.when = True
        with layers.active(KEYS[:3]), pytest.raises(InputError, match="parameter 'lender.weight' has another gradient"):
            engine.accumulate(lambda: squared(model, batch))


def test_an_engine_that_was_not_verified_does_not_pass_quantized_examples() -> None:
    model = shaken(gpt2())
    layers, batch = quantized(model), tokens(4, 9, 40)
    refused = pytest.raises(InputError, match="has another gradient than autograd's")
    with PerExample(model, Clipping(norm=1.0), may_promote=False) as engine, layers.active(KEYS), refused:
        engine.accumulate(lambda: causal(model, batch))


def test_rows_that_are_not_the_examples_are_refused() -> None:
    layers = quantized(Single(nn.Linear(8, 4)))
    for shape in ((8,), (1, 8), (5, 8)):
        with layers.active(KEYS), pytest.raises(InputError, match="layer 'layer' has rows of shape .* for 4 examples"):
            layers.network(torch.randn(shape))
    layers = quantized(Single(nn.Conv2d(3, 4, 3)))
    for shape in ((3, 8, 8), (8, 3, 8, 8)):
        with layers.active(KEYS), pytest.raises(InputError, match="for 4 examples"):
            layers.network(torch.randn(shape))


def test_blocks_are_used_in_order() -> None:
    layers = QuantizedLayers(network=Single(nn.Linear(8, 4)), format=LUQ, seed=SEED)
    with pytest.raises(RuntimeError, match="call begin"), layers.active([1]):
        pass
    layers.choose(frozenset(layers.names))
    layers.begin(0)
    with layers.active([1]):
        with pytest.raises(RuntimeError, match="other examples are passing"), layers.active([2]):
            pass
        output = layers.network(torch.randn(1, 8))
    with pytest.raises(RuntimeError, match="run the backward pass in the same block"):
        output.sum().backward()
