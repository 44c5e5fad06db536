"""Layers of torch in the settings that other libraries test, each with a batch and a loss for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from tests.train.clipping.support import Batch, Losses, squared

ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``make`` builds the model and ``batch`` its rows; ``quick`` cases are tested every time.

    ``refused`` is part of the sentence that refuses a layer that cannot be right.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    losses: Losses = squared
    quick: bool = False
    refused: str | None = None


class Through(nn.Module):
    """``layer`` after a trained layer of the same width, with what ``call`` makes of its output."""

    def __init__(self, layer: nn.Module, call: Callable[..., Tensor], width: int = 6) -> None:
        super().__init__()
        self.before, self.layer, self.call = nn.Linear(width, width), layer, call

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        return self.call(self.layer, torch.tanh(self.before(x)), *more)


def _floats(*shape: int) -> Callable[[], Batch]:
    return lambda: {"x": torch.randn(ROWS, *shape)}


def _ids(length: int, count: int = 9) -> Callable[[], Batch]:
    return lambda: {"x": torch.randint(0, count, (ROWS, length))}


def convolutions() -> Iterator[Case]:
    """One to three dimensions; groups, dilations, strides, paddings and their modes."""
    kinds = {1: (nn.Conv1d, (9,)), 2: (nn.Conv2d, (7, 6)), 3: (nn.Conv3d, (5, 4, 5))}
    paddings = [(1, "zeros"), (0, "zeros"), ("same", "zeros"), ("valid", "zeros"), (1, "reflect"), (1, "replicate"),
                (1, "circular"), ("same", "circular")]  # fmt: skip
    for dimensions, (groups, dilation, stride), (padding, mode) in product(
        kinds, [(1, 1, 1), (2, 1, 2), (4, 2, 1), (1, 2, 2)], paddings
    ):
        if padding == "same" and stride != 1:
            continue
        kind, size = kinds[dimensions]
        options = {"groups": groups, "dilation": dilation, "stride": stride, "padding": padding, "padding_mode": mode}
        yield Case(
            name=f"conv{dimensions}d {groups} groups, dilation {dilation}, stride {stride}, {padding} {mode}",
            make=partial(kind, 4, 8, 2, bias=groups != 2, **options),
            batch=_floats(4, *size),
            quick=dilation == 2 and stride == 1 and mode != "zeros",
        )
    transposed = {1: (nn.ConvTranspose1d, (5,)), 2: (nn.ConvTranspose2d, (4, 3)), 3: (nn.ConvTranspose3d, (3, 2, 3))}
    for dimensions, groups in product(transposed, (1, 2)):
        kind, size = transposed[dimensions]
        yield Case(
            name=f"transposed conv{dimensions}d {groups} groups",
            make=partial(kind, 4, 6, 3, stride=2, padding=1, output_padding=1, groups=groups),
            batch=_floats(4, *size),
            quick=dimensions == 2 and groups == 2,
        )


def normalisations() -> Iterator[Case]:
    """With and without a scale and a shift of their own; without, between layers that are trained."""
    kinds: dict[str, tuple[Callable[[bool], nn.Module], type[nn.Module] | None, tuple[int, ...]]] = {
        "instance norm 1d": (lambda own: nn.InstanceNorm1d(6, affine=own), nn.Conv1d, (6, 5)),
        "instance norm 2d": (lambda own: nn.InstanceNorm2d(6, affine=own), nn.Conv2d, (6, 4, 3)),
        "instance norm 3d": (lambda own: nn.InstanceNorm3d(6, affine=own), nn.Conv3d, (6, 3, 2, 3)),
        "instance norm of known statistics": (_known_statistics, nn.Conv2d, (6, 4, 3)),
        "group norm": (lambda own: nn.GroupNorm(3, 6, affine=own), nn.Conv2d, (6, 4, 3)),
        "group norm of vectors": (lambda own: nn.GroupNorm(2, 6, affine=own), None, (6,)),
        "layer norm": (lambda own: nn.LayerNorm(6, elementwise_affine=own), None, (5, 6)),
        "layer norm of two dimensions": (lambda own: nn.LayerNorm((5, 6), elementwise_affine=own), None, (5, 6)),
        "rms norm": (lambda own: nn.RMSNorm(6, elementwise_affine=own), None, (5, 6)),
    }
    for (name, (layer, convolution, shape)), affine in product(kinds.items(), (True, False)):
        yield Case(
            name=f"{name}, {'affine' if affine else 'plain'}",
            make=partial(_normalised, layer, affine, convolution),
            batch=_floats(*shape),
            quick=affine and name.startswith("instance norm"),
        )


def _normalised(layer: Callable[[bool], nn.Module], affine: bool, convolution: Any) -> nn.Module:
    return nn.Sequential(convolution(6, 6, 1) if convolution else nn.Linear(6, 6), layer(affine))


def _known_statistics(affine: bool) -> nn.Module:
    layer = nn.InstanceNorm2d(6, affine=affine, track_running_stats=True)
    layer(2 + 3 * torch.randn(64, 6, 4, 3))
    return layer.eval()


def embeddings() -> Iterator[Case]:
    """Look-ups and bags of them."""
    for padding in (None, 2):
        build = partial(nn.Embedding, 9, 6, padding_idx=padding)
        yield Case(name=f"embedding, padding {padding}", make=build, batch=_ids(7))
        yield Case(
            name=f"embedding scaled by frequency, padding {padding}",
            make=partial(build, scale_grad_by_freq=True),
            batch=_ids(12),
            quick=True,
        )
        yield Case(
            name=f"embedding of bounded rows, padding {padding}",
            make=partial(build, max_norm=0.8),
            batch=_ids(7),
            quick=True,
        )
        for mode in ("sum", "mean", "max"):
            for form in ("rows", "offsets", "last offset", "weights"):
                if form == "weights" and mode != "sum":
                    continue
                yield Case(
                    name=f"bag of {mode}, {form}, padding {padding}",
                    make=partial(_bag, mode, form, padding),
                    batch=_ids(7),
                    quick=padding is not None,
                )
    yield Case(name="bag of bounded rows", make=partial(nn.EmbeddingBag, 9, 6, max_norm=0.8), batch=_ids(7))
    yield Case(name="sparse embedding", make=partial(nn.Embedding, 9, 6, sparse=True), batch=_ids(7))
    yield Case(name="two bags an example", make=TwoBags, batch=_ids(8), quick=True)


class TwoBags(nn.Module):
    """Bags of halves of each row, which are rows to the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(9, 6, mode="mean")

    def forward(self, x: Tensor) -> Tensor:
        return self.bags(x.reshape(2 * len(x), -1)).reshape(len(x), -1)


class Bag(nn.Module):
    """A bag for each row: of its first ids only, of a number that its first one says."""

    def __init__(self, form: str, layer: nn.EmbeddingBag) -> None:
        super().__init__()
        self.form, self.layer = form, layer

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "rows":
            return self.layer(x)
        if self.form == "weights":
            return self.layer(
                x, per_sample_weights=torch.linspace(0.5, 2, x.shape[1]).to(self.layer.weight).expand(x.shape)
            )
        lengths = x[:, 0] % x.shape[1]  # 0 for some
        ids = torch.cat([row[:n] for row, n in zip(x, lengths.tolist(), strict=True)])
        ends = lengths.cumsum(0)
        starts = ends - lengths
        if self.form == "last offset":
            return self.layer(ids, torch.cat([starts, ends[-1:]]))
        return self.layer(ids, starts)


def _bag(mode: str, form: str, padding: int | None) -> nn.Module:
    last = form == "last offset"
    return Bag(form, nn.EmbeddingBag(9, 6, mode=mode, padding_idx=padding, include_last_offset=last))


def recurrent() -> Iterator[Case]:
    """Recurrent layers, by what is read of them."""
    kinds = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
    for (kind, build), layers, both, first in product(kinds.items(), (1, 2), (False, True), (True, False)):
        sides = "both ways" if both else "one way"
        case = f"{kind}, {layers} layers, {sides}, {'rows' if first else 'steps'} first"
        layer = partial(build, 6, 5, layers, bidirectional=both, batch_first=first)
        for read, call in (("outputs", _outputs), ("last states", _last), ("given states", _input_for)):
            yield Case(
                name=f"{case}, {read}",
                make=partial(_through, layer, call),
                batch=_floats(5, 6),
                quick=layers == 2 and both and read == ("last states" if first else "outputs"),
            )
        for enforced in (True, False):
            yield Case(
                name=f"{case}, packed{', sorted' if enforced else ''}",
                make=partial(_through, layer, partial(_packed, enforced)),
                batch=partial(_lengths, enforced),
                losses=of_lengths,
                quick=layers == 2 and both and not first and not enforced,
            )
    yield Case(
        name="rnn of relu without bias",
        make=partial(_through, partial(nn.RNN, 6, 5, nonlinearity="relu", bias=False, batch_first=True), _outputs),
        batch=_floats(5, 6),
    )
    yield Case(
        name="lstm of projections",
        make=partial(_through, partial(nn.LSTM, 6, 5, 2, proj_size=3, bidirectional=True, batch_first=True), _last),
        batch=_floats(5, 6),
        quick=True,
    )
    for kind, cell in (("rnn", nn.RNNCell), ("lstm", nn.LSTMCell), ("gru", nn.GRUCell)):
        yield Case(name=f"{kind} cell", make=partial(_through, partial(cell, 6, 6), _cells), batch=_floats(5, 6))


def _through(layer: Callable[[], nn.Module], call: Callable[..., Tensor]) -> nn.Module:
    return Through(layer(), call)


def _ordered(layer: Any, x: Tensor) -> Tensor:
    return x if layer.batch_first else x.transpose(0, 1)


def _outputs(layer: Any, x: Tensor) -> Tensor:
    return _ordered(layer, layer(_ordered(layer, x))[0])


def _last(layer: Any, x: Tensor) -> Tensor:
    """Outputs and last states together."""
    outputs, states = layer(_ordered(layer, x))
    states = states if isinstance(states, tuple) else (states,)
    return torch.cat([_ordered(layer, outputs).flatten(1), *[s.transpose(0, 1).flatten(1) for s in states]], 1)


def _input_for(layer: Any, x: Tensor) -> Tensor:
    """From states that depend on a trained layer too."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    state = x[:, 0, : layer.hidden_size].expand(count, -1, -1)
    inputs = (state, 0.5 * state) if isinstance(layer, nn.LSTM) else state
    return _ordered(layer, layer(_ordered(layer, x), inputs)[0])


def _packed(enforced: bool, layer: Any, x: Tensor, lengths: Tensor) -> Tensor:
    packed = rnn.pack_padded_sequence(_ordered(layer, x), lengths, layer.batch_first, enforced)
    outputs, states = layer(packed)
    states = states if isinstance(states, tuple) else (states,)
    padded = rnn.pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0]
    return torch.cat([padded.flatten(1), *[s.transpose(0, 1).flatten(1) for s in states]], 1)


def _lengths(enforced: bool) -> Batch:
    lengths = torch.tensor([5, 3, 3, 1] if enforced else [3, 5, 1, 3])
    return {"x": torch.randn(ROWS, 5, 6), "lengths": lengths}


def of_lengths(model: nn.Module, batch: Batch) -> Tensor:
    """As ``squared``, of a model that takes lengths as well."""
    output = model(batch["x"], batch["lengths"])
    return ((torch.linspace(0.5, 1.5, output.shape[1]).to(output)) * (output + 0.3) ** 2).sum(1)


def _cells(layer: Any, x: Tensor) -> Tensor:
    state = None
    for step in x.unbind(1):
        state = layer(step) if state is None else layer(step, state)
    return state[0] if isinstance(state, tuple) else state


def attention() -> Iterator[Case]:
    """Multi-head attention by its options and masks."""
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "no bias": {"bias": False},
        "bias_k and bias_v": {"add_bias_kv": True},
        "a zero added": {"add_zero_attn": True},
        "kdim and vdim": {"kdim": 4, "vdim": 5},
        "all of them": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 4, "vdim": 5},
    }
    for (name, chosen), first, mask in product(
        options.items(), (True, False), ("no mask", "causal mask", "padding", "mask of rows")
    ):
        yield Case(
            name=f"attention, {name}, {'rows' if first else 'steps'} first, {mask}",
            make=partial(_attention, first, mask, chosen),
            batch=_floats(5, 6),
            quick=name == "all of them" and mask in ("causal mask", "mask of rows"),
        )
    for first in (True, False):
        yield Case(
            name=f"encoder layer, {'rows' if first else 'steps'} first",
            make=partial(_through, partial(nn.TransformerEncoderLayer, 6, 2, 8, 0.0, batch_first=first), _encoded),
            batch=_floats(5, 6),
        )
        yield Case(
            name=f"decoder layer, {'rows' if first else 'steps'} first",
            make=partial(_through, partial(nn.TransformerDecoderLayer, 6, 2, 8, 0.0, batch_first=first), _decoded),
            batch=_floats(5, 6),
        )


def _attention(first: bool, mask: str, options: dict[str, Any]) -> nn.Module:
    return Through(nn.MultiheadAttention(6, 2, batch_first=first, **options), partial(_attended, mask))


def _attended(mask: str, layer: Any, x: Tensor) -> Tensor:
    key, value = x[..., : layer.kdim], x[..., : layer.vdim]
    more: dict[str, Tensor] = {}
    if mask == "causal mask":
        more["attn_mask"] = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    if mask == "padding":
        more["key_padding_mask"] = x[..., 0] > x[..., :1].mean((1, 2), keepdim=True)[..., 0] + 0.5
    if mask == "mask of rows":
        more["attn_mask"] = (x[:, :, None, 0] * x[:, None, :, 0]).detach().repeat_interleave(2, 0)
    output, weights = layer(*[_swapped(layer, t) for t in (x, key, value)], **more)
    return torch.cat([_swapped(layer, output), weights], 2)


def _swapped(layer: Any, x: Tensor) -> Tensor:
    return x if layer.batch_first else x.transpose(0, 1)


def _encoded(layer: Any, x: Tensor) -> Tensor:
    return _swapped(layer.self_attn, layer(_swapped(layer.self_attn, x)))


def _decoded(layer: Any, x: Tensor) -> Tensor:
    memory = _swapped(layer.self_attn, x.flip(1))
    return _swapped(layer.self_attn, layer(_swapped(layer.self_attn, x), memory))


class Beside(nn.Module):
    """A parameter of its own beside a child's weight that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.scale = nn.Linear(6, 6), nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.child.weight * self.scale[:, None], self.child.bias)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * x**3


def parametrized() -> Iterator[Case]:
    """Weights that are computed from others."""
    utils = nn.utils
    cases: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "weight norm of linear": (lambda: utils.parametrizations.weight_norm(nn.Linear(6, 4)), (5, 6)),
        "weight norm of conv2d": (lambda: utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 2)), (3, 5, 4)),
        "older weight norm": (lambda: nn.Sequential(utils.weight_norm(nn.Linear(6, 4)), nn.ReLU()), (5, 6)),
        "older weight norm alone": (lambda: utils.weight_norm(nn.Linear(6, 4)), (5, 6)),
        "orthogonal": (lambda: utils.parametrizations.orthogonal(nn.Linear(6, 4)), (5, 6)),
        "spectral norm in evaluation": (lambda: utils.parametrizations.spectral_norm(nn.Linear(6, 4)).eval(), (5, 6)),
        "a cube": (lambda: _cubed(nn.Linear(6, 4)), (5, 6)),
        "weight norm between": (
            lambda: nn.Sequential(
                nn.Linear(6, 6), utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 3)
            ),
            (5, 6),
        ),
        "own beside a child's": (Beside, (5, 6)),
        "own beside a child's between": (lambda: nn.Sequential(nn.Linear(6, 6), Beside(), nn.Linear(6, 3)), (5, 6)),
    }
    for name, (make, shape) in cases.items():
        yield Case(name=name, make=make, batch=_floats(*shape), quick=True)
    for name, norm in (("spectral norm", utils.parametrizations.spectral_norm), ("older one", utils.spectral_norm)):
        yield Case(
            name=f"{name} in training",
            make=partial(_normed, norm),
            batch=_floats(5, 6),
            quick=True,
            refused="changes its buffers in every forward pass",
        )


def _normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return norm(nn.Linear(6, 4))


def _cubed(layer: nn.Module) -> nn.Module:
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    return layer


CASES = tuple(
    case for group in (convolutions, normalisations, embeddings, recurrent, attention, parametrized) for case in group()
)
