"""A small network on texts with a layer in its middle, which may be sound or let records at each other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from privctl.models.encoding import TextFacts, TextOptions, encode_causal
from privctl.models.tasks.language import CausalLanguage
from tests.models.tasks.small import RECORDS, words


class Network(nn.Module):
    """Embedding, something that mixes positions causally, the layer under test, logits."""

    def __init__(self, layer: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, width)
        self.first = nn.Linear(width, width)
        self.layer = layer
        self.last = nn.Linear(width, 60)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool = False) -> Any:
        x = torch.tanh(self.first(self.embedding(input_ids)))
        positions = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        return SimpleNamespace(logits=self.last(self.layer(x + x.cumsum(1) / positions)))


def task() -> CausalLanguage:
    facts = TextFacts(tokenizer=words().tokenizer, context=40, vocabulary=60, pad=0)
    return CausalLanguage(corpus=encode_causal(RECORDS, facts, TextOptions()), facts=facts)


class Function(nn.Module):
    """A layer from a function of (n, T, d)."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


class Standardized(nn.Module):
    """Batch normalisation under another name: statistics of the batch, and running ones that are not used."""

    def __init__(self, *, running: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self._running = running

    def forward(self, x: Tensor) -> Tensor:
        if self._running:
            with torch.no_grad():
                self.mean += 0.1 * (x.mean((0, 1)) - self.mean)
            return x
        return (x - x.mean((0, 1))) / x.std((0, 1))


class Experts(nn.Module):
    """Top-1 routing in which an expert takes so many tokens of a batch and drops the rest (Switch Transformer)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.router, self._share = nn.Linear(8, 4), share
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(-1)
        best, chosen = chances.max(-1)
        capacity = max(8, int(self._share * chosen.numel() / 4))
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            kept = mine & (mine.flatten().cumsum(0).view(mine.shape) <= capacity)
            out = out + expert(x) * (kept * best)[..., None]
        return x + out


class Scaled(nn.Module):
    """A quantizer with one scale for the batch, and a straight-through gradient."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.detach().abs().max() / 7
        return x + (torch.round(x / scale) * scale - x).detach()


class Remembering(nn.Module):
    """Something of the batch before, kept where no buffer is."""

    def __init__(self) -> None:
        super().__init__()
        self._last = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        last, self._last = self._last, x.detach().mean((0, 1))
        return x + 0.1 * last


class LayerDropped(nn.Module):
    """A layer that is left out, for all records of a pass, with some probability (Fan, Grave and Joulin 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.layerdrop = nn.Linear(8, 8), 0.05

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and torch.rand([]) < self.layerdrop else x + self.inner(x)


class PositionDropped(nn.Module):
    """Dropout on embeddings of positions, which all records of a pass share, as DeBERTa has it."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.dropout = nn.Parameter(torch.randn(64, 8)), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.positions)[: x.shape[1]]


class Gated(nn.Module):
    """The batch's mean behind a gate that is closed at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * x.mean((0, 1))


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0, keepdim=True)


def averaged_backward(x: Tensor) -> Tensor:
    """The identity, whose gradient reads across records."""
    found: Tensor = _Averaged.apply(x)
    return found


#: Layer by what it does wrong, as the refusal has it, with what it lets a record depend on.
FAULTS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "padded length": (lambda: Function(lambda x: x * (1 + 0.002 * x.shape[1])), "padded to"),
    "more padding than one token": (lambda: Function(lambda x: x * (1.1 if x.shape[1] > 7 else 1)), "padded to"),
    "batch mean": (lambda: Function(lambda x: x - x.mean((0, 1))), "content of the other records|padded to"),
    "mean over records": (lambda: Function(lambda x: x - 0.1 * x[:, :2].mean((0, 1))), "content of the other records"),
    "batch statistics": (lambda: Standardized(running=False), "content of the other records|padded to"),
    "running statistics": (lambda: Standardized(running=True), "buffer 'layer.mean'"),
    "experts of limited capacity": (lambda: Experts(1.25), "content of the other|its place in the batch"),
    "a scale for the batch": (Scaled, "content of the other records"),
    "number of records": (lambda: Function(lambda x: x * (1 + 0.01 * len(x))), "the number of records"),
    "place in the batch": (
        lambda: Function(lambda x: x * (1 + 0.01 * torch.arange(len(x))[:, None, None])), "its place in the batch",
    ),
    "memory": (Remembering, "the batches before it"),
    "random by record": (
        lambda: Function(lambda x: x * (1 + 0.1 * torch.rand(len(x), 1, 1))), "random numbers that are drawn",
    ),
    "random, the same for a pass": (
        lambda: Function(lambda x: x * (1 + 0.1 * torch.rand(()))), "random numbers that are drawn",
    ),
    "a layer dropped for a pass": (LayerDropped, "random numbers that are drawn"),
    "a dropped position": (PositionDropped, "random numbers that are drawn"),
    "closed gate": (Gated, "content of the other records|padded to"),
    "gradient only": (lambda: Function(averaged_backward), "content of the other|examples of a batch are mixed"),
}  # fmt: skip

SOUND: dict[str, Callable[[], nn.Module]] = {
    "nothing": nn.Identity,
    "layer norm": lambda: nn.LayerNorm(8),
    "experts that take all": lambda: Experts(1e9),
    "dropout": lambda: nn.Dropout(0.3),
    "a scale for each position": lambda: Function(lambda x: x + (x / x.abs().amax(-1, keepdim=True)).round().detach()),
}
