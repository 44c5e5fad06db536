"""Where a part's examples cannot be told apart, the module above it is differentiated as a whole, and rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from privctl.domain.errors import InputError
from privctl.integrations.make_private import make_private
from privctl.train.clipping import Clipping, PerExample, generic, promotion, terms
from privctl.train.clipping.promotion import promotion_sentence
from privctl.train.clipping.rerun import Mode
from privctl.train.settings.choices import ClippingStyle
from tests.train.clipping.support import Batch, Between, agree, clipped_sum, distance, length, looped, run, squared
from tests.train.clipping.windows import PLACES, WIDTH, ShiftedWindows, Windows

ROWS = 6


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class RelativeBias(nn.Module):
    """Attention whose bias is looked up by the distance of positions, once for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.bias = nn.Linear(WIDTH, WIDTH), nn.Embedding(2 * PLACES, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1])
        weights = x @ x.mT + self.bias(places[:, None] - places[None] + PLACES)[..., 0]
        if mask is not None:
            weights = weights + mask
        return weights.softmax(-1) @ self.values(x)


class Experts(nn.Module):
    """Tokens of all examples in rows, sorted by the expert that a router chose, and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chances = self.router(flat).softmax(-1)
        chosen = chances.argmax(-1)
        output = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            own = (chosen == number).nonzero()[:, 0]
            if len(own):
                output = output.index_add(0, own, expert(flat[own]) * chances[own, number, None])
        return output.view_as(x)


class Borrower(nn.Module):
    """Reads a child's weight without calling the child, beside a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.inner = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.convolution.weight, self.convolution.bias
        moved = functional.conv1d(self.inner(x).mT, weight, bias, padding=1, groups=WIDTH).mT
        return torch.tanh(moved) * self.decay


class InParts(nn.Module):
    """Experts that are never called: their owner calls their layers and reads a parameter of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = Experts()
        self.mixture.bias = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Experts.forward(self.mixture, x) + self.mixture.bias


class PositionsFirst(nn.Module):
    """Has its examples in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.layer(x.transpose(0, 1)))).transpose(0, 1)


class Positions(nn.Module):
    """Adds a table of positions, in a first dimension of one for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(2 * PLACES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(x)


class Table(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.arange(x.shape[1]))[None]


class Squeezed(Positions):
    """Where that dimension of one is relied on."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(x).view(x.shape[1], WIDTH)


def batch(rows: int = ROWS, places: int = PLACES) -> Batch:
    return {"x": torch.randn(rows, places, WIDTH)}


def promoted(model: nn.Module, *batches: Batch) -> dict[str, Mode | None]:
    with PerExample(model, Clipping(norm=1.0)) as engine:
        for each in batches:
            engine.accumulate(lambda each=each: squared(model, each))
        model.zero_grad()
        return {each.module: each.mode for each in engine.promoted}


KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Mode]]] = {
    "shared position bias": (RelativeBias, {"layer": Mode.MAPPED}),
    "a table of positions": (Positions, {"layer.table": Mode.REPEATED}),
    "a table without a row": (Squeezed, {"layer": Mode.MAPPED}),
    "experts": (Experts, {"layer": Mode.ALONE}),
    "windows": (Windows, {"layer": Mode.MAPPED}),
    "a bias of all windows": (ShiftedWindows, {"layer.attention.bias": Mode.REPEATED}),
    "windows in another order": (lambda: ShiftedWindows(consecutive=False), {"layer": Mode.MAPPED}),
    "a child's weight": (Borrower, {"layer": Mode.EXPANDED}),
    "experts called in parts": (InParts, {"layer": Mode.ALONE}),
    "positions first": (PositionsFirst, {}),
    "flattened rows": (lambda: nn.Sequential(nn.Flatten(0, 1), nn.Linear(8, 8), nn.Unflatten(0, (-1, PLACES))), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_gradients_of_a_loop(kind: str) -> None:
    build, expected = KINDS[kind]
    model = Between(build())
    agree(model, squared, batch())
    assert promoted(model, batch()) == expected


@pytest.mark.parametrize("places", [ROWS, 2 * ROWS])
def test_as_many_positions_as_examples_confuse_nothing(places: int) -> None:
    for build, _ in (*list(KINDS.values())[:-1],):
        agree(Between(build()), squared, batch(places=places if build is not RelativeBias else ROWS))


def test_what_was_found_in_one_batch_holds_in_the_next() -> None:
    for build in (RelativeBias, Windows, ShiftedWindows, PositionsFirst, Positions, Squeezed):
        model = Between(build())
        batches = [batch(4, 6), batch(6, 6), batch(1, 6), batch(6, 4), batch(2, 8)]
        with PerExample(model, Clipping(norm=1e-3)) as engine:
            for each in batches:
                model.zero_grad(set_to_none=True)
                expected = clipped_sum(looped(model, squared, each), 1e-3)
                engine.accumulate(lambda each=each, model=model: squared(model, each))
                found = {name: p.grad for name, p in engine.trainable.items()}
                assert distance(found, expected) < 1e-4


class Learned(nn.Module):
    """A table of positions that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(PLACES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1])[:, None])[:, 0]


@pytest.mark.parametrize("build", [Learned, RelativeBias])
def test_a_batch_of_one_decides_nothing(build: Callable[[], nn.Module]) -> None:
    model = Between(build())
    first, second = batch(1), batch(4)
    expected = clipped_sum(looped(model, squared, second), 1e-3)
    with PerExample(model, Clipping(norm=1e-3)) as engine:
        engine.accumulate(lambda: squared(model, first))
        model.zero_grad(set_to_none=True)
        engine.accumulate(lambda: squared(model, second))
        assert distance({name: p.grad for name, p in engine.trainable.items()}, expected) < 1e-4


def test_memory_limit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (terms, generic):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    for build in (RelativeBias, Experts, Borrower):
        agree(Between(build()), squared, batch())


class Tied(nn.Module):
    """The output layer's weight is read by a promoted module too, under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = Borrower(), nn.Linear(WIDTH, WIDTH, bias=False)
        self.layer.inner.weight = self.out.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.layer(x)))


def test_a_weight_tied_across_the_border_counts_with_both_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(Tied(), squared, batch())
    assert promoted(Tied(), batch()) == {"layer": Mode.EXPANDED}
    found = promotion.sites

    def forgetful(*args: Any) -> Any:
        """Planted fault: the promoted module leaves out the weight that it shares."""
        sizes = found(*args)
        for site in sizes:
            if site.name == "layer":
                site.parameters.pop("inner.weight", None)
        return sizes

    monkeypatch.setattr(promotion, "sites", forgetful)
    model, x = Tied(), batch()
    layer = [promotion.Promotion(module="layer", kind="Borrower", reason="")]
    with PerExample(model, Clipping(norm=1.0), layer, may_promote=False) as engine:
        engine._checked = True  # as if nothing were compared
        norms = engine.accumulate(lambda: squared(model, x)).norms
    assert not torch.allclose(norms, torch.tensor([length(g) for g in looped(model, squared, x)]).double(), rtol=1e-2)
    with (
        PerExample(model, Clipping(norm=1.0), layer, may_promote=False) as engine,
        pytest.raises(InputError, match=r"parameter 'layer.inner.weight' has another gradient"),
    ):
        engine.accumulate(lambda: squared(model, x))


def test_a_promoted_module_that_mixes_rows_is_refused() -> None:
    class Mixing(Borrower):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x - 0.01 * x.mean(0, keepdim=True)

    for model in (Mixing(), Between(Mixing())):
        with pytest.raises(InputError, match="together than one by one, so that it mixes them"):
            run(model, squared, batch(), 1.0)
        assert all(p.grad is None and p.requires_grad for p in model.parameters())


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "dropout of channels": lambda x: functional.dropout1d(x, 0.5),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "rand": lambda x: x * (0.7 + torch.rand(len(x), 1, 1)).floor(),
    "rand_like": lambda x: x * (torch.rand_like(x[:, :1, :1]) < 0.7),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "bernoulli_": lambda x: x * x.new_empty(len(x), 1, 1).bernoulli_(0.5),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_promoted_module_that_draws_and_mixes_rows_is_refused(kind: str) -> None:
    """By ``make_private`` too, whose models meet no other test of this."""

    class Drawing(Borrower):
        share = 0.0

        def forward(self, x: Tensor) -> Tensor:
            x = DRAWS[kind](super().forward(x))
            return x - self.share * x.mean(0, keepdim=True)

    def step(share: float) -> None:
        model = Between(Drawing()).train()
        model.layer.share = share
        loader = DataLoader(TensorDataset(batch(60)["x"]), batch_size=20)
        private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, noise_multiplier=1.0)
        drawn = iter(private.loader)
        (x,) = next(drawn)
        private.backward(lambda: squared(model, {"x": x}))

    step(0.0)
    with pytest.raises(InputError, match="together than one by one, so that it mixes them"):
        step(0.01)


def test_promotion_ends_where_it_makes_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: nothing is promoted, and modules come and go."""
    found, turns = promotion.with_parents, iter(range(1000))
    other = promotion.Promotion(module="after", kind="Linear", reason="")
    for above in (lambda _, held, __: dict(held), lambda *_: {"after": other} if next(turns) % 2 else {}):
        monkeypatch.setattr(promotion, "with_parents", above)
        model = Between(RelativeBias())
        with pytest.raises(InputError, match=r"module 'layer.bias' .* changed nothing, so freeze it"):
            run(model, squared, batch(), 1.0)
    assert next(turns) < 4 * len(list(model.modules())) + 3
    monkeypatch.setattr(promotion, "with_parents", found)
    run(Between(RelativeBias()), squared, batch(), 1.0)


def test_dropout_inside_is_drawn_once() -> None:
    class Random(Borrower):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(super().forward(x), 0.5, self.training)

    model, x = Between(Random()).train(), batch()

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        torch.manual_seed(5)
        return squared(model, batch)

    rows = [dict(zip("abcdefghij", torch.autograd.grad(losses(model, x)[i], list(model.parameters())), strict=False))
            for i in range(ROWS)]  # fmt: skip
    _, result = run(model, losses, x, 0.5)
    torch.testing.assert_close(result.norms, torch.tensor([length(row) for row in rows]).double(), rtol=1e-4, atol=0)


def test_layers_share_the_clip_norm_with_a_promoted_module() -> None:
    model = Between(Borrower())
    with PerExample(model, Clipping(norm=1e-3, style=ClippingStyle.PER_LAYER)) as engine:
        engine.accumulate(lambda: squared(model, {"x": torch.randn(1, PLACES, WIDTH)}))
        groups = engine.groups
        assert sorted(map(len, groups)) == [2, 2, 2, 3]
        total = torch.stack([torch.stack([model.get_parameter(n).grad.norm() for n in g]).norm() for g in groups])
    torch.testing.assert_close(total, torch.full((4,), 1e-3 / 4**0.5), rtol=1e-5, atol=0)


def test_what_was_found_beforehand_is_all_that_is_allowed() -> None:
    model = Between(Experts())
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        found = engine.promoted
    with PerExample(model, Clipping(norm=1.0), found, may_promote=False) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert engine.promoted == found
        with engine.timed() as inside:
            engine.accumulate(lambda: squared(model, batch()))
        assert inside() > 0
    with pytest.raises(InputError, match="freeze"):
        run(model, squared, batch(), 1.0, promote=False)
    sentence = promotion_sentence(found, 0.25)
    assert sentence.startswith(
        "module layer (Experts) is differentiated as a whole (one example at a time), because layer."
    )
    assert sentence.endswith("; on made-up records that takes 25 % of the time of gradients")


class ActivatedGroupNorm(nn.GroupNorm):
    """As in BiT: no rule for group norms holds of it, so that it runs again by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


@pytest.mark.parametrize("pixels", [1, 3])
def test_a_group_norm_of_pixels_with_channels_last_runs_again(pixels: int) -> None:
    """Its parameters' gradient alone, in this layout, ends the process in torch 2.13."""
    model = nn.Sequential(nn.Conv2d(3, 8, 1), ActivatedGroupNorm(4, 8)).to(memory_format=torch.channels_last)
    x = torch.randn(ROWS, 3, pixels, pixels).to(memory_format=torch.channels_last)
    agree(model, squared, {"x": x})
