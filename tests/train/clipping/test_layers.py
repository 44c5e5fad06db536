"""The engine against plain autograd, layer type by layer type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm
from transformers.pytorch_utils import Conv1D

from privctl.domain.errors import InputError
from privctl.train.clipping import embedding, generic, linear, measure, terms
from privctl.train.clipping.normalisation import scaled_rms_norm
from privctl.train.clipping.rules import rule_for
from tests.train.clipping.support import agree, run, squared


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class LayerScale(nn.Module):
    """Has a parameter of its own and no rule."""

    def __init__(self, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.drop = drop

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return functional.dropout(torch.tanh(x * self.gain), self.drop, self.training), "aside"


class First(nn.Module):
    """Takes a layer's first output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class Branches(nn.Module):
    """Looks at values, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain if float(x.sum()) > -1e9 else x


class Mixer(nn.Module):
    """Takes a tensor besides, which no example owns, though it may have as many rows as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask @ (x * self.gain)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = Mixer()

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x, torch.arange(x.shape[1] ** 2.0).view(x.shape[1], -1).tril())


SEQUENCE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 6),
    "linear without bias": lambda: nn.Linear(8, 6, bias=False),
    "transposed": lambda: Conv1D(6, 8),
    "layer norm": lambda: nn.LayerNorm(8),
    "layer norm of two dimensions": lambda: nn.LayerNorm((7, 8)),
    "rms norm": lambda: nn.RMSNorm(8),
    "llama's": lambda: LlamaRMSNorm(8),
    "gemma's": lambda: GemmaRMSNorm(8),
    "layer scale": lambda: First(LayerScale(8)),
    "attention": Attend,
    "branches": Branches,
    "in place": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.SiLU(inplace=True)),
    "mixed": Mixed,
    "adapter": lambda: nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)),
}


@pytest.mark.parametrize("layer", SEQUENCE)
@pytest.mark.parametrize("shape", [(5, 7, 8), (1, 7, 8), (7, 7, 8)])
def test_layers_of_sequences(layer: str, shape: tuple[int, ...]) -> None:
    agree(SEQUENCE[layer](), squared, {"x": torch.randn(shape)})


class Almost(nn.Module):
    """RMSNorm, but for one thing."""

    def __init__(self, but: str) -> None:
        super().__init__()
        self.weight, self.eps, self.but = nn.Parameter(torch.ones(8)), 1e-6, but

    def forward(self, x: Tensor) -> Tensor:
        square = x.square().mean(-1, keepdim=True)
        if self.but == "outside the root":
            return self.weight * (x / (square.sqrt() + self.eps))
        if self.but == "another epsilon":
            return self.weight * x * torch.rsqrt(square + 2 * self.eps)
        if self.but == "not linear":
            return self.weight**2 * x * torch.rsqrt(square + self.eps)
        if self.but == "centred":
            x = x - x.mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(square + self.eps)


class Gated(Almost):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x) * (1 if gate is None else gate)


@pytest.mark.parametrize("build", [LlamaRMSNorm, GemmaRMSNorm, T5LayerNorm, lambda size: Almost("nothing")])
def test_the_rms_norm_of_a_model_is_known_by_what_it_does(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic.RepeatableUse, "together", None)  # no other rule may serve
    assert rule_for(build(8)) is scaled_rms_norm
    for shape in ((5, 7, 8), (5, 8), (5, 2, 3, 8)):
        agree(build(8), squared, {"x": torch.randn(shape)})


@pytest.mark.parametrize(
    "other", [Almost("outside the root"), Almost("another epsilon"), Almost("not linear"), Almost("centred"), Gated("")]
)
def test_what_is_not_quite_one_is_not_taken_for_it(other: nn.Module) -> None:
    assert rule_for(other) is generic.generic
    agree(other, squared, {"x": torch.randn(5, 7, 8)})


@pytest.mark.parametrize("layer", ["linear", "transposed", "layer norm", "rms norm"])
@pytest.mark.parametrize("shape", [(5, 8), (5, 1, 8), (5, 2, 3, 8)])
def test_any_number_of_positions(layer: str, shape: tuple[int, ...]) -> None:
    agree(SEQUENCE[layer](), squared, {"x": torch.randn(shape)})


def frozen(module: nn.Module, *more: int) -> nn.Module:
    """With statistics of another batch, (64, 4, *more)."""
    module(3 + 2 * torch.randn(64, 4, *more))
    return module.eval()


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (5, 4, 11)),
    "1d grouped": (lambda: nn.Conv1d(4, 6, 3, dilation=2, groups=2, bias=False), (5, 4, 11)),
    "2d": (lambda: nn.Conv2d(4, 6, 3), (5, 4, 7, 9)),
    "2d large": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (5, 4, 16, 17)),
    "1d large": (lambda: nn.Conv1d(4, 6, 3, stride=2), (5, 4, 520)),
    "2d strided": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 2), dilation=(1, 2)), (5, 4, 9, 9)),
    "2d wide": (lambda: nn.Conv2d(2, 3, 7, stride=2, padding=3), (5, 2, 24, 24)),
    "2d depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding="same"), (5, 4, 5, 5)),
    "2d reflecting": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (5, 4, 5, 5)),
    "2d patches": (lambda: nn.Conv2d(3, 6, 4, stride=4), (5, 3, 9, 8)),
    "3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 2), (4, 2, 3, 3)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (5, 4, 3, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (5, 4, 3, 3)),
    "group norm of vectors": (lambda: nn.GroupNorm(2, 4), (5, 4)),
    "frozen batch norm": (lambda: frozen(nn.BatchNorm2d(4), 3, 3), (5, 4, 3, 3)),
    "frozen batch norm of vectors": (lambda: frozen(nn.BatchNorm1d(4, eps=0.1)), (5, 4)),
    "frozen batch norm of volumes": (lambda: frozen(nn.BatchNorm3d(4), 2, 3, 2), (5, 4, 2, 3, 2)),
}


@pytest.mark.parametrize("variant", ["chosen", "formed", "formed from patches", "ghost"])
@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_convolutions_are_clipped_in_every_way(layer: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = CONVOLUTIONS[layer]
    if variant != "chosen":
        monkeypatch.setattr("privctl.train.clipping.convolution.forming_is_cheaper", lambda *_: variant != "ghost")
    if variant == "formed from patches":
        monkeypatch.setattr("privctl.train.clipping.convolution.MANY_WEIGHTS", 0)
    agree(make(), squared, {"x": torch.randn(shape)})


@pytest.mark.parametrize("positions", [1, 2, 33, 100, 300])
@pytest.mark.parametrize("transposed", [True, False])
def test_gram_matrices_and_formed_gradients_measure_the_same(positions: int, transposed: bool) -> None:
    term = linear.Outer(torch.randn(3, positions, 12), torch.randn(3, positions, 5), transposed)
    formed = terms.Dense(term.example_gradients(slice(None)))
    torch.testing.assert_close(term.squares().square, formed.squares().square, rtol=1e-5, atol=0)
    torch.testing.assert_close(measure.formed_squares([term]).square, formed.squares().square, rtol=1e-5, atol=0)
    assert (term.squares().slack >= formed.squares().square * (1 - 1e-5)).all()
    torch.testing.assert_close(term.squares().slack, term.slack(), rtol=1e-4, atol=0)
    sums = []
    for each in (term, formed):
        sums.append(torch.zeros(formed.gradients.shape[1:]))
        each.add_weighted(sums[-1], torch.tensor([0.5, 2.0, 0.0]))
        fresh = torch.full_like(sums[-1], torch.nan)
        torch.testing.assert_close(each.add_weighted(fresh, torch.tensor([0.5, 2.0, 0.0]), fresh=True), sums[-1])
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ghost", [True, False])
@pytest.mark.parametrize("length", [1, 200])
def test_both_ways_through_the_engine(ghost: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "forming_is_cheaper", lambda *_: not ghost)
    monkeypatch.setattr(measure, "forming_is_cheaper", lambda *_: not ghost)
    agree(nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4)), squared, {"x": torch.randn(4, length, 8)})


class FirstToken(nn.Module):
    """Positions are mixed once; then one of them is read."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above, self.head = nn.Linear(8, 8), nn.Linear(8, 12, bias=False), Conv1D(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.softmax(x @ x.mT, -1) @ self.below(x)
        return self.head(functional.gelu(self.above(mixed)))


def weighted(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"]) * batch["weights"][..., None]).square().sum((1, 2))


SILENT = {
    "all but the first": lambda weights: weights[:, 1:],
    "others in each": lambda weights: weights.masked_fill_(torch.rand(weights.shape).argsort(1) > 2, 0)[:0],
    "half of them": lambda weights: weights[:, ::2],
    "of most examples": lambda weights: weights[1:, 1:],
}


@pytest.mark.parametrize("silent", SILENT)
def test_positions_whose_gradient_is_zero_are_left_out(silent: str) -> None:
    weights = torch.rand(5, 11) + 0.5
    SILENT[silent](weights).zero_()
    agree(FirstToken(), weighted, {"x": torch.randn(5, 11, 8), "weights": weights})


def test_as_many_positions_stay_as_the_busiest_example_has() -> None:
    inputs, gradients = torch.randn(3, 10, 4), torch.zeros(3, 10, 6)
    gradients[0, 2, 5], gradients[1, 7], gradients[1, 9, 0] = 1e-30, torch.nan, -3.0
    kept = linear.without_zeros(inputs, gradients)
    assert [each.shape[1] for each in kept] == [2, 2]
    whole, fewer = (linear.Outer(*each).example_gradients(slice(None)) for each in ((inputs, gradients), kept))
    torch.testing.assert_close(fewer, whole, rtol=1e-6, atol=0, equal_nan=True)
    gradients[2, :6, 0] = 1.0
    assert linear.without_zeros(inputs, gradients)[0] is inputs
    assert linear.without_zeros(inputs, torch.zeros(3, 10, 6))[1].shape == (3, 1, 6)


def test_a_position_left_out_too_many_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = linear.without_zeros
    monkeypatch.setattr(linear, "without_zeros", lambda *pair: tuple(each[:, :-1] for each in sound(*pair)))
    weights = torch.rand(5, 11)
    weights[:, 3:] = 0
    with pytest.raises(InputError, match="another gradient"):
        run(FirstToken(), weighted, {"x": torch.randn(5, 11, 8), "weights": weights}, 1.0, promote=False)


def test_memory_limit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (terms, generic):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    for layer in ("linear", "layer norm", "layer scale", "branches"):
        agree(SEQUENCE[layer](), squared, {"x": torch.randn(5, 7, 8)})
    agree(nn.Conv2d(4, 6, 3), squared, {"x": torch.randn(5, 4, 7, 9)})


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6, **options)
        self.places = nn.Embedding(9, 6)
        self.flat = options.get("padding_idx") is None

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        return torch.tanh(self.words(ids) + self.places(places if self.flat else places[None]))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}])
def test_embeddings_and_shared_positions(options: dict[str, Any]) -> None:
    ids = torch.randint(0, 11, (5, 9))
    ids[:, :3] = 2
    agree(Words(**options), squared, {"x": ids})


def test_a_sparse_embedding_has_the_same_gradients() -> None:
    model = Words(sparse=True)
    batch = {"x": torch.randint(0, 11, (5, 9))}
    sparse, _ = run(model, squared, batch, 1.0)
    model.words.sparse = False
    dense, _ = run(model, squared, batch, 1.0)
    assert dense["words.weight"].any()
    assert all(torch.equal(sparse[name], dense[name]) for name in dense)


def test_wrong_expansion_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: shared ids are not expanded, or so that each row stands for another position."""
    ids = {"x": torch.randint(0, 11, (9, 9))}
    monkeypatch.setattr("privctl.train.clipping.taps.over_examples", lambda ids, count: ids)
    with pytest.raises(InputError, match="autograd's"):
        run(Words(padding_idx=2), squared, ids, 1.0, promote=False)
    with pytest.raises(InputError, match="of shape \\(1, 9, 6\\) in a batch of 7, so that its examples"):
        run(Words(padding_idx=2), squared, {"x": ids["x"][:7]}, 1.0, promote=False)
    with pytest.raises(InputError, match="autograd's"):
        run(Words(), squared, ids, 1.0, promote=False)


def test_scaled_embedding() -> None:
    class TextScaledWordEmbedding(nn.Embedding):
        embed_scale = torch.tensor(3.0)

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * self.embed_scale

    agree(TextScaledWordEmbedding(11, 6), squared, {"x": torch.randint(0, 11, (5, 9))})


class Tied(nn.Module):
    def __init__(self, uses: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 6)
        self.inner = nn.Linear(6, 6)
        self.out = nn.Linear(6, 40)
        self.out.weight = self.words.weight
        self.uses = uses

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for _ in range(self.uses):
            x = torch.tanh(self.inner(x) + self.words(ids.flip(1)))
        return self.out(x)


@pytest.mark.parametrize("uses", [1, 3])
@pytest.mark.parametrize("formed", [True, False])
def test_tied_weights_and_modules_used_again(uses: int, formed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "forming_is_cheaper", lambda *_: formed)
    agree(Tied(uses), squared, {"x": torch.randint(0, 40, (5, 9))})


def test_missing_cross_term_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault, as in FastDP: the two uses' norms are added as if they were orthogonal."""
    batch = {"x": torch.randint(0, 40, (5, 3))}
    model = Tied()
    agree(model, squared, batch, checked=False)
    monkeypatch.setattr(measure, "cross", lambda product, lookup: torch.zeros(5, dtype=torch.float64))
    with pytest.raises(AssertionError):
        agree(model, squared, batch, checked=False)
    with pytest.raises(InputError, match="the gradient of row 0 has norm"):
        run(model, squared, batch, 1.0)


def test_slots_are_equal_where_ids_are() -> None:
    ids = torch.tensor([[4, 4, 1, 4], [7, 1, 7, 2]])
    slots = embedding._slots(ids)
    for row in range(2):
        same = slots[row][:, None] == slots[row][None]
        assert torch.equal(same, ids[row][:, None] == ids[row][None])
    assert not set(slots[0].tolist()) & set(slots[1].tolist())


@pytest.mark.parametrize("layer", [lambda: First(LayerScale(8, 0.5)), lambda: nn.Dropout(0.5)])
def test_dropout_is_the_same_when_run_again(layer: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), layer()).train()
    x = torch.randn(5, 7, 8)

    def losses() -> Tensor:
        torch.manual_seed(3)
        return squared(model, {"x": x})

    gradients = [torch.autograd.grad(losses()[i], list(model.parameters())) for i in range(5)]
    norms = [torch.cat([g.flatten() for g in of_row]).norm() for of_row in gradients]
    _, result = run(model, lambda *_: losses(), {"x": x}, 1.0)
    torch.testing.assert_close(result.norms.float(), torch.stack(norms), rtol=1e-5, atol=0)
