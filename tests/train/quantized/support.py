"""Small networks, and the definition they are compared with: each example alone, by plain autograd, same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from privctl.train.clipping import ClippedBatch, Clipping, PerExample
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.settings.choices import FormatName
from tests.train.clipping.support import Batch, Gradients, Losses, count, looped, rows

SEED = b"test"


class Residual(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.second(functional.relu(self.norm(self.first(x)))))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


def bert() -> nn.Module:
    config = hf.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return hf.BertForSequenceClassification(config)


def shaken(model: nn.Module) -> nn.Module:
    """In float64, where the same words round the same way however sums were ordered, and past initial zeros."""
    model = model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def quantized(model: nn.Module, name: FormatName = FormatName.LUQ_FP4, *, step: int = 3) -> QuantizedLayers:
    """All of its layers."""
    layers = QuantizedLayers(network=model, format=FORMATS[name], seed=SEED)
    layers.choose(frozenset(layers.names))
    layers.begin(step)
    return layers


def alone(layers: QuantizedLayers, losses: Losses, batch: Batch, keys: Sequence[int]) -> list[Gradients]:
    """Each example's gradient, from a batch of it alone."""
    found = []
    for i, key in enumerate(keys):
        with layers.active([key]):
            found += looped(layers.network, losses, rows(batch, slice(i, i + 1)))
    return found


def together(
    layers: QuantizedLayers, losses: Losses, batch: Batch, keys: Sequence[int], clip: float
) -> tuple[Gradients, ClippedBatch]:
    """One call of the engine."""
    model: Any = layers.network
    model.zero_grad()
    with PerExample(model, Clipping(norm=clip)) as engine:
        engine.verify(lambda: losses(model, batch))
        assert all(p.grad is None for p in model.parameters())
        with layers.active(keys):
            result = engine.accumulate(lambda: losses(model, batch))
        gradients = {name: p.grad.clone() for name, p in engine.trainable.items() if p.grad is not None}
    model.zero_grad()
    assert len(keys) == count(batch)
    return gradients, result


class Single(nn.Module):
    """One layer between two known things."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Twice(nn.Module):
    """One layer, called twice, with a checkpoint round each call or not."""

    def __init__(self, *, saving: bool) -> None:
        super().__init__()
        self.layer, self.saving = nn.Linear(8, 8), saving

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=False) if self.saving else self.layer(x)
            x = x.tanh()
        return x
