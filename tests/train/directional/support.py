"""Tiny networks of several families, groups of their tensors, and the definition of what is sought in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from privctl.train.directional import FiredGroup, direction
from tests.train.clipping.support import Batch, causal, classified, looped, tokens
from tests.train.clipping.test_families import CAUSAL, resnet

SEED = b"tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network, its loss on a batch, and groups that fire."""

    model: nn.Module
    losses: Callable[[nn.Module, Batch], Tensor]
    batch: Batch
    fired: tuple[FiredGroup, ...]

    @property
    def losses_of(self) -> Callable[[], Tensor]:
        return partial(self.losses, self.model, self.batch)

    def directions(self, step: int = 0) -> list[dict[str, Tensor]]:
        return [
            direction(SEED, step, group.index, {n: self.model.get_parameter(n).shape for n in group.parameters})
            for group in self.fired
        ]

    def expected(self) -> Tensor:
        """(n, fired) float64: each example's gradient from a batch of its own, times the direction."""
        rows = []
        for gradients in looped(self.model, self.losses, self.batch):
            rows.append([product(gradients, along) for along in self.directions()])
        return torch.tensor(rows, dtype=torch.float64)


def product(gradients: Mapping[str, Tensor], along: Mapping[str, Tensor]) -> float:
    return sum(float((gradients[name].double() * entries.double()).sum()) for name, entries in along.items())


def groups(*parameters: tuple[str, ...]) -> tuple[FiredGroup, ...]:
    """Groups with numbers that are not their places."""
    return tuple(FiredGroup(index=3 + 2 * i, parameters=names) for i, names in enumerate(parameters))


def grouped_norms(model: nn.Module) -> nn.Module:
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, nn.GroupNorm(4, module.num_features))
    return model


def _bert() -> Case:
    import transformers as hf

    shape = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = hf.BertForSequenceClassification(
        hf.BertConfig(**shape, intermediate_size=24, max_position_embeddings=16, num_labels=3)
    )
    layer = "bert.encoder.layer.1."
    return Case(
        model=model.eval(),
        losses=classified,
        batch={**tokens(5, 9, 40), "labels": torch.tensor([0, 1, 2, 1, 0])},
        fired=groups(
            ("classifier.weight",),
            (layer + "attention.self.query.weight", layer + "output.LayerNorm.bias"),
            ("bert.embeddings.word_embeddings.weight",),
        ),
    )


def _gpt2() -> Case:
    fired = groups(
        ("transformer.h.1.mlp.c_fc.weight",),
        ("transformer.h.0.ln_1.weight", "transformer.h.1.attn.c_attn.bias"),
        ("transformer.wte.weight",),
        ("transformer.wpe.weight",),
    )
    return Case(model=CAUSAL["gpt2 tied"]().eval(), losses=causal, batch=tokens(5, 9, 40), fired=fired)


def _llama() -> Case:
    fired = groups(
        ("lm_head.weight",),
        ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.gate_proj.weight", "model.norm.weight"),
        ("model.embed_tokens.weight",),
    )
    return Case(model=CAUSAL["llama"]().eval(), losses=causal, batch=tokens(5, 9, 40), fired=fired)


def _resnet() -> Case:
    model = grouped_norms(resnet())
    names = [name for name, _ in model.named_parameters()]
    batch = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 1])}
    fired = groups((names[0],), (names[len(names) // 2],), tuple(names[-2:]))
    return Case(model=model.eval(), losses=classified, batch=batch, fired=fired)


FAMILIES: dict[str, Callable[[], Case]] = {"gpt2": _gpt2, "llama": _llama, "bert": _bert, "resnet": _resnet}


def case(family: str) -> Case:
    """A network away from its initial zeros and ones."""
    torch.manual_seed(0)
    found = FAMILIES[family]()
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return found


def state(model: nn.Module) -> list[Any]:
    """All that must be as before: the weights' bits, where they lie, what requires a gradient, and every gradient."""
    return [
        (name, p.detach().view(torch.uint8).tolist(), p.data_ptr(), p.requires_grad, p.grad)
        for name, p in model.named_parameters()
    ]
