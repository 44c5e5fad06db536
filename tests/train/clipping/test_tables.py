"""Tables that all examples share, such as embeddings of relative positions: a copy for each example."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DebertaConfig, DebertaForMaskedLM, DebertaV2Config, DebertaV2ForMaskedLM

from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.layouts import Layouts
from privctl.train.clipping.rerun import Mode
from tests.train.clipping.support import (
    Batch,
    agree,
    causal,
    distance,
    every_row_agrees,
    length,
    looped,
    squared,
    tokens,
)

ROWS, PLACES, HEADS, WIDTH = 6, 5, 3, 12


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class Attention(nn.Module):
    """Attention to a table, by layers that also read the examples; the table is repeated for each."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (HEADS, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, x: Tensor, shared: Tensor) -> Tensor:
        keys, values = (self.heads(layer(shared[None])).repeat(len(x), 1, 1) for layer in (self.key, self.query))
        found = (self.heads(self.query(x)) @ keys.mT).softmax(-1) @ values
        return x + found.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2)


class Relative(nn.Module):
    """Two layers of attention to one normalized table, and a row that is put before the positions of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(2 * ROWS, WIDTH), nn.LayerNorm(WIDTH)
        self.layers, self.gain = nn.ModuleList([Attention(), Attention()]), nn.Parameter(torch.rand(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        shared = self.norm(self.table.weight)[:-1]
        for layer in self.layers:
            x = self.call(layer, x, shared)
        return torch.cat([self.gain.expand(len(x), -1, -1), x], 1)[:, :-1]

    def call(self, layer: nn.Module, x: Tensor, shared: Tensor) -> Any:
        return layer(x, shared)


class Checkpointed(Relative):
    def call(self, layer: nn.Module, x: Tensor, shared: Tensor) -> Any:
        return checkpoint(layer, x, shared, use_reentrant=False)


class Headed(nn.Module):
    """A table that is repeated for each head, which is not an example even if there are as many."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(PLACES, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.table.weight.unsqueeze(0).repeat(HEADS, 1, 1).cumsum(0)[-1]
        return self.inner(x) @ mixed.mT @ mixed


class Both(Headed):
    """The same, and repeated for each example as well."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.table.weight.unsqueeze(0).repeat(len(x), 1, 1)[:, : x.shape[1]]


class Rarely(Headed):
    """Repeats the table for each head for large inputs only."""

    def forward(self, x: Tensor) -> Tensor:
        large = float(x.detach().abs().amax()) > 100
        return super().forward(x) if large else self.inner(x) @ self.table.weight.mT @ self.table.weight


class Between(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(3, WIDTH), layer, nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x)))[..., 0]


def batch(rows: int = ROWS) -> Batch:
    return {"x": torch.randn(rows, PLACES, 3), "y": torch.randn(rows, PLACES)}


def found_modes(engine: PerExample) -> dict[str, Any]:
    return {each.module: each.mode for each in engine.promoted}


@pytest.mark.parametrize("kind", [Relative, Checkpointed])
def test_a_table_read_by_watched_layers_is_copied(kind: type[nn.Module]) -> None:
    model = Between(kind())
    agree(model, squared, batch(), tolerance=1e-4)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert found_modes(engine) == {"layer": Mode.EXPANDED}


@pytest.mark.parametrize("kind", [Headed, Both])
@pytest.mark.parametrize("sizes", [(ROWS, HEADS), (HEADS, ROWS), (1, HEADS, ROWS), (1, ROWS, HEADS)])
def test_heads_are_never_taken_for_examples(kind: type[nn.Module], sizes: tuple[int, ...]) -> None:
    model = Between(kind())
    reference = copy.deepcopy(model)
    with PerExample(model, Clipping(norm=0.05)) as engine:
        for rows in sizes:
            data = batch(rows)
            model.zero_grad()
            engine.accumulate(lambda data=data: squared(model, data))
            found = {name: p.grad.clone() for name, p in engine.trainable.items()}
            with PerExample(reference, Clipping(norm=0.05)) as alone:
                for i in range(rows):
                    own = {name: values[i : i + 1] for name, values in data.items()}
                    alone.accumulate(lambda own=own: squared(reference, own))
                expected = {name: p.grad.clone() for name, p in alone.trainable.items()}
            reference.zero_grad()
            assert distance(found, expected) < 1e-4


def test_heads_that_no_compared_batch_had_are_never_taken_for_examples() -> None:
    model = Between(Rarely())
    with PerExample(model, Clipping(norm=1e9)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert found_modes(engine) == {"layer": Mode.EXPANDED}
        data = {"x": 1000 * batch(HEADS)["x"], "y": torch.zeros(HEADS, PLACES)}
        norms = engine.accumulate(lambda: squared(model, data)).norms
    expected = [length(gradients) for gradients in looped(model, squared, data)]
    torch.testing.assert_close(norms, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=0)


def test_what_one_engine_found_holds_for_the_next() -> None:
    model, layouts = Between(Headed()), Layouts()
    with PerExample(model, Clipping(norm=1e6), layouts=layouts) as engine:
        engine.accumulate(lambda: squared(model, batch(ROWS)))
        promoted = engine.promoted
    model.zero_grad()
    data = batch(HEADS)
    with PerExample(model, Clipping(norm=1e6), promoted, compared=True, layouts=layouts) as engine:
        norms = engine.accumulate(lambda: squared(model, data)).norms
    for i, norm in enumerate(norms):
        own = {name: values[i : i + 1] for name, values in data.items()}
        model.zero_grad()
        squared(model, own).sum().backward()
        expected = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        assert float(norm) == pytest.approx(float(expected), rel=1e-4)


class Faint(nn.Module):
    """A table that nearly does not matter at first, read without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.factor = torch.full((), 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.factor * (x @ self.table.weight)


def test_a_table_that_hardly_matters_at_first_is_trained_later() -> None:
    model = Between(Faint())
    with PerExample(model, Clipping(norm=1e6)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert found_modes(engine) == {"layer": Mode.EXPANDED}
        model.layer.factor.fill_(1.0)
        model.zero_grad()
        data = batch()
        engine.accumulate(lambda: squared(model, data))
        found = model.layer.table.weight.grad.clone()
    expected = torch.autograd.grad(squared(model, data).sum(), model.layer.table.weight)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


_SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20,
    "max_position_embeddings": 16, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
}  # fmt: skip
DEBERTAS: dict[str, Callable[[], nn.Module]] = {
    "v2": lambda: DebertaV2ForMaskedLM(DebertaV2Config(**_SIZES)),
    "v3": lambda: DebertaV2ForMaskedLM(
        DebertaV2Config(**_SIZES, share_att_key=True, norm_rel_ebd="layer_norm", position_buckets=8)
    ),
    "v1": lambda: DebertaForMaskedLM(DebertaConfig(**_SIZES)),
}


@pytest.mark.parametrize("kind", DEBERTAS)
def test_debertas(kind: str) -> None:
    model = DEBERTAS[kind]().eval()
    every_row_agrees(model, causal, tokens(4, 10, 20), tolerance=1e-3)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        for rows, places in ((4, 10), (2, 7)):
            engine.accumulate(lambda rows=rows, places=places: causal(model, tokens(rows, places, 20)))
        found = found_modes(engine)
    # The first version multiplies a table by a tensor that does not depend on the batch.
    assert found == {"deberta.encoder": Mode.MAPPED if kind == "v1" else Mode.EXPANDED}
