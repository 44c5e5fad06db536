"""Parameters that a module reads outside the layers that own them: a copy for each example, and never a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from privctl.train.clipping import Clipping, PerExample, expanded, promotion
from privctl.train.clipping.rerun import Mode
from tests.train.clipping.support import (
    Batch,
    Between,
    agree,
    causal,
    clipped_sum,
    distance,
    every_row_agrees,
    looped,
    run,
    squared,
    tokens,
)

ROWS, PLACES, WIDTH = 6, 5, 8


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class Reader(nn.Module):
    """Reads the weights of two children without calling them, beside parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.step = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH), nn.Linear(3, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.log, self.factor = nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        size = self.convolution.weight.shape[-1]
        moved = functional.conv1d(
            self.inner(x).mT,
            self.convolution.weight.squeeze(1).unsqueeze(1),
            self.convolution.bias,
            padding=size - 1,
            groups=WIDTH,
        )[..., : x.shape[1]]
        steps = self.step.weight @ moved[:, :3] + self.step.bias.to(x.dtype)[..., None]
        decay = -torch.exp(self.log.float()).to(x.dtype)
        states = torch.exp(decay[None, :, None] * functional.softplus(steps)[..., None]).sum(-1)
        return (states * moved + self.factor[None, :, None] * moved).mT


def batch(rows: int = ROWS, places: int = PLACES) -> Batch:
    return {"x": torch.randn(rows, places, WIDTH)}


def modes(model: nn.Module, losses: Callable[[Any, Batch], Tensor], *batches: Batch, **keywords: Any) -> dict[str, Any]:
    with PerExample(model, Clipping(norm=1.0), **keywords) as engine:
        for each in batches:
            engine.accumulate(lambda each=each: losses(model, each))
        model.zero_grad()
        return {each.module: each.mode for each in engine.promoted}


def test_what_a_module_reads_is_copied_and_nothing_is_run_again() -> None:
    model = Between(Reader())
    calls: list[int] = []
    model.layer.register_forward_hook(lambda *_: calls.append(1))
    every_row_agrees(model, squared, batch(), tolerance=1e-4)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert {each.module: (each.mode, each.reads) for each in engine.promoted} == {
            "layer": (Mode.EXPANDED, frozenset({"convolution", "step"}))
        }
        calls.clear()
        engine.accumulate(lambda: squared(model, batch()))
    assert len(calls) == 1
    assert type(model.layer.log) is nn.Parameter
    assert promotion.promotion_sentence(engine.promoted, None) is None


def test_float64_frozen_and_tied_parameters() -> None:
    model = Between(Reader()).double()
    x = {"x": batch()["x"].double()}
    every_row_agrees(model, squared, x, tolerance=1e-6)  # the module itself computes in float32
    model.layer.log.requires_grad_(False)
    model.layer.convolution.bias.requires_grad_(False)
    every_row_agrees(model, squared, x, tolerance=1e-6)
    model.layer.step.bias = model.layer.factor  # read twice, under two names
    model.after.bias = model.layer.factor  # and used by a layer that is called
    every_row_agrees(model, squared, x, tolerance=1e-6)
    assert modes(model, squared, x) == {"layer": Mode.EXPANDED}


def test_batches_of_all_sizes_in_turn() -> None:
    model = Between(Reader())
    sizes = [(1, 4), (4, 6), (6, 6), (1, 3), (6, 12), (2, 8)]
    with PerExample(model, Clipping(norm=1e-3)) as engine:
        for each in (batch(*size) for size in sizes):
            model.zero_grad(set_to_none=True)
            expected = clipped_sum(looped(model, squared, each), 1e-3)
            engine.accumulate(lambda each=each: squared(model, each))
            assert distance({name: p.grad for name, p in engine.trainable.items()}, expected) < 1e-4


def test_examples_of_several_rows() -> None:
    model, x = Between(Reader()), batch()
    rows = looped(model, squared, x)
    pairs = [{name: a[name] + b[name] for name in a} for a, b in zip(rows[::2], rows[1::2], strict=True)]
    with PerExample(model, Clipping(norm=1e-3)) as engine:
        engine.accumulate(lambda: squared(model, x).view(-1, 2).sum(1), run=2)
        found = {name: p.grad for name, p in engine.trainable.items()}
    assert distance(found, clipped_sum(pairs, 1e-3)) < 1e-4


@pytest.mark.parametrize("passes", [1, 2])
def test_checkpointed_and_in_two_passes(passes: int) -> None:
    class Checkpointed(Between):
        def forward(self, x: Tensor) -> Tensor:
            return self.after(checkpoint(self.layer, torch.tanh(self.before(x)), use_reentrant=False))

    model, x = Checkpointed(Reader()), batch()
    expected = clipped_sum(looped(model, squared, x), 1e-3)
    with PerExample(model, Clipping(norm=1e-3), passes=passes) as engine:
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            engine.accumulate(lambda: squared(model, x))
            assert distance({name: p.grad for name, p in engine.trainable.items()}, expected) < 1e-4
        assert [each.mode for each in engine.promoted] == [Mode.EXPANDED]


def test_under_autocast() -> None:
    model = Between(Reader())

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squared(model, batch).float()

    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: losses(model, batch()))
        assert engine.reduced
        assert [each.mode for each in engine.promoted] == [Mode.EXPANDED]
    every_row_agrees(model, losses, batch(), tolerance=5e-2)


class InPlace(Reader):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.zeros(WIDTH).add_(self.factor)


class Values(Reader):
    """Reads a value."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if float(self.factor[0]) > 0 else 1.0)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, factor = ctx.saved_tensors
        return gradients * factor, (gradients * x).flatten(0, 1).sum(0)


class Custom(Reader):
    """Hands a parameter to a function that torch cannot look into, such as a compiled kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(super().forward(x), self.factor)


class Returned(torch.autograd.Function):
    """Returns a parameter, whose gradient it doubles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), factor

    @staticmethod
    def backward(ctx: Any, gradients: Tensor, of_factor: Tensor) -> tuple[Tensor, Tensor]:
        return gradients, 2 * of_factor


class Through(Reader):
    """Gets a parameter back from such a function."""

    def forward(self, x: Tensor) -> Tensor:
        x, factor = Returned.apply(super().forward(x), self.factor)
        return x * factor


class WithoutGradient(Reader):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            shift = self.factor.mean()
        return super().forward(x) + shift


class PositionsFirst(Reader):
    """Multiplies where the first dimension is positions."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x).transpose(0, 1) * self.factor).transpose(0, 1)


@pytest.mark.parametrize("kind", [InPlace, Values, Custom, Through, WithoutGradient, PositionsFirst])
@pytest.mark.parametrize("places", [PLACES, ROWS, ROWS**2])
def test_what_cannot_be_followed_is_differentiated_as_a_whole(kind: type[Reader], places: int) -> None:
    model = Between(kind())
    agree(model, squared, batch(places=places))
    assert modes(model, squared, batch(places=places))["layer"] is not Mode.EXPANDED


def test_copies_of_large_parameters_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanded, "LARGEST_BYTES", 100)
    assert modes(Between(Reader()), squared, batch()) == {"layer": Mode.MAPPED}


def test_mixed_examples_are_refused() -> None:
    class Mixing(Reader):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x - 0.01 * x.mean(0, keepdim=True)

    with pytest.raises(promotion.InputError, match="mixes them"):
        run(Between(Mixing()), squared, batch(), 1.0)


def test_losses_that_copies_change_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a function is mapped to another one, whose gradients autograd then confirms."""
    original = expanded._mapped

    def other(func: Any, leaves: list[Any], form: Any) -> Any:
        return original(torch.exp2 if func is torch.exp else func, leaves, form)

    monkeypatch.setattr(expanded, "_mapped", other)
    assert modes(Between(Reader()), squared, batch()) == {"layer": Mode.MAPPED}


def test_what_was_found_beforehand_is_all_that_is_allowed() -> None:
    model = Between(Reader())
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        found = engine.promoted
    assert modes(model, squared, batch(), promoted=found, may_promote=False) == {"layer": Mode.EXPANDED}


_SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 20}
_HEADS: dict[str, Any] = {"chunk_size": 4, "n_groups": 1}
STATE_SPACES: dict[str, Callable[[], nn.Module]] = {
    "mamba": lambda: MambaForCausalLM(MambaConfig(**_SMALL, state_size=4)),
    "falcon mamba": lambda: FalconMambaForCausalLM(FalconMambaConfig(**_SMALL, state_size=4)),
    "mamba 2": lambda: Mamba2ForCausalLM(Mamba2Config(**_SMALL, **_HEADS, state_size=4, num_heads=4, head_dim=8)),
    "bamba": lambda: BambaForCausalLM(
        BambaConfig(
            **_SMALL, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, attn_layer_indices=[1],
            mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=4,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", STATE_SPACES)
def test_state_space_models(kind: str) -> None:
    model = STATE_SPACES[kind]().train()
    every_row_agrees(model, causal, tokens(4, 10, 20), tolerance=1e-3)
    found = modes(model, causal, tokens(4, 10, 20), tokens(3, 7, 20))
    assert found
    assert set(found.values()) == {Mode.EXPANDED}
