"""The definition that the engine is compared with: every example's gradient by plain autograd, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.train.clipping import ClippedBatch, Clipping, PerExample
from privctl.train.settings.choices import ClippingStyle

Gradients = dict[str, Tensor]
Batch = dict[str, Tensor]
#: Runs a model on some rows and gives a loss for each.
Losses = Callable[[nn.Module, Batch], Tensor]


class Between(nn.Module):
    """``layer``, of 8 features a position, between layers that are trained too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(8, 8), layer, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(torch.tanh(self.before(x))))


def rows(batch: Batch, which: slice) -> Batch:
    return {name: values[which] for name, values in batch.items()}


def count(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def looped(model: nn.Module, losses: Losses, batch: Batch) -> list[Gradients]:
    """Each example's gradient, from a batch of it alone."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for i in range(count(batch)):
        loss = losses(model, rows(batch, slice(i, i + 1)))[0]
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        found.append(dict(zip(parameters, gradients, strict=True)))
    return found


def length(gradients: Gradients) -> float:
    return float(torch.stack([g.double().norm() for g in gradients.values()]).norm())


def clipped_sum(gradients: list[Gradients], clip: float) -> Gradients:
    factors = [min(1.0, clip / max(length(g), 1e-30)) for g in gradients]
    return {name: sum(f * g[name] for f, g in zip(factors, gradients, strict=True)) for name in gradients[0]}


def distance(found: Gradients, expected: Gradients) -> float:
    """Relative to ``expected``."""
    return length({name: found[name] - expected[name] for name in expected}) / length(expected)


def run(
    model: nn.Module,
    losses: Losses,
    batch: Batch,
    clip: float,
    *,
    style: ClippingStyle = ClippingStyle.FLAT,
    checked: bool = True,
    promote: bool = True,
) -> tuple[Gradients, ClippedBatch]:
    """One call of the engine; without ``checked`` its comparison with autograd is left out, to test it alone."""
    model.zero_grad()
    with PerExample(model, Clipping(norm=clip, style=style), may_promote=promote) as engine:
        engine._checked = not checked
        result = engine.accumulate(lambda: losses(model, batch))
        gradients = {name: p.grad.clone() for name, p in engine.trainable.items()}
    model.zero_grad()
    return gradients, result


def agree(model: nn.Module, losses: Losses, batch: Batch, *, tolerance: float = 1e-4, checked: bool = True) -> None:
    """The engine's norms and sum are those of the definition, about half of the examples being clipped."""
    expected = looped(model, losses, batch)
    norms = torch.tensor([length(g) for g in expected], dtype=torch.float64)
    clip = float(norms.median()) * 0.999
    found, result = run(model, losses, batch, clip, checked=checked)
    torch.testing.assert_close(result.norms.cpu(), norms, rtol=tolerance, atol=0)
    assert distance(found, clipped_sum(expected, clip)) < tolerance
    assert result.shorter.tolist() == (norms > clip).tolist()
    assert all(p.requires_grad for name, p in model.named_parameters() if name in found)


def every_row_agrees(model: nn.Module, losses: Losses, batch: Batch, *, tolerance: float) -> None:
    """Each example's unclipped gradient, and its norm, is that of the definition."""
    with PerExample(model, Clipping(norm=1.0)) as engine:
        expected = looped(model, losses, batch)
        norms = engine.accumulate(lambda: losses(model, batch)).norms
        model.zero_grad()
        found = engine.rows(lambda: losses(model, batch), range(count(batch)), lambda gradient: gradient.clone())[1]
    for row, wanted in enumerate(expected):
        zeros = {name: torch.zeros_like(g) for name, g in wanted.items()}
        assert length({name: {**zeros, **found[row]}[name] - g for name, g in wanted.items()}) <= tolerance * length(
            wanted
        ), row
        assert abs(float(norms[row]) - length(wanted)) <= tolerance * length(wanted), row


def tokens(n: int, length: int, vocabulary: int, seed: int = 0) -> Batch:
    ids = torch.randint(1, vocabulary, (n, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids}


def causal(model: Any, batch: Batch) -> Tensor:
    """Mean loss over the tokens of each row."""
    logits = model(**batch, use_cache=False).logits[:, :-1].float()
    labels = batch["input_ids"][:, 1:]
    return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1)


def masked(model: Any, batch: Batch) -> Tensor:
    logits = model(**batch).logits.float()
    return functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"], reduction="none").mean(1)


def classified(model: Any, batch: Batch) -> Tensor:
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return functional.cross_entropy(model(**inputs).logits.float(), batch["labels"], reduction="none")


def squared(model: nn.Module, batch: Batch) -> Tensor:
    """For single layers: a loss that weighs every output differently."""
    output = model(batch["x"])
    weights = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view(output[0].shape)
    return (weights * (output + 0.3) ** 2).flatten(1).sum(1)
