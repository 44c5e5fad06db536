"""What the DP-SGD bench trains: a model, a batch for it, and one loss an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 8192


@dataclass(frozen=True, slots=True)
class Shape:
    """A model with batches of ``examples``; ``tiny`` is a batch small enough to differentiate example by example.

    Position ids are given for every example, because Opacus and FastDP need them so. ``origin`` names the parameters
    FastDP may differentiate in place of all. ``fewer_rounds``: a step of it takes seconds. ``parties`` are those that
    fit on a card together, where not all do. ``written_out``: it has activations that ``fused_activations`` replaces.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], dict[str, Tensor]]
    losses: Callable[[Any, dict[str, Tensor]], Tensor]
    examples: int
    positions: int
    tiny: tuple[int, int]
    origin: tuple[str, ...]
    fewer_rounds: bool = False
    tokens: bool = True
    parties: tuple[str, ...] | None = None
    written_out: bool = False


def _gpt2(*, tied: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=128, n_embd=512, n_layer=6, n_head=8, tie_word_embeddings=tied,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, use_cache=False,
        )
    )  # fmt: skip


def _gpt2_small() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, use_cache=False)
    )


def _llama() -> nn.Module:
    """1.1e9 numbers, of TinyLlama's sizes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
            num_key_value_heads=4, max_position_embeddings=2048, use_cache=False,
        )
    )  # fmt: skip


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


class _Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.past = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        found = self.norm2(self.second(functional.relu(self.norm1(self.first(x)))))
        return functional.relu(found + self.past(x))


def _resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU(),
        _Block(32, 32, 1), _Block(32, 64, 2), _Block(64, 128, 2), _Block(128, 256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def _tokens(examples: int, positions: int) -> dict[str, Tensor]:
    ids = torch.randint(1, VOCABULARY, (examples, positions))
    places = torch.arange(positions).expand(examples, -1).contiguous()
    return {"input_ids": ids, "position_ids": places}


def _classified_tokens(examples: int, positions: int) -> dict[str, Tensor]:
    found = _tokens(examples, positions)
    return {
        **found,
        "token_type_ids": torch.zeros_like(found["input_ids"]),
        "labels": torch.randint(0, 2, (examples,)),
    }


def _images(examples: int, positions: int) -> dict[str, Tensor]:
    return {"x": torch.randn(examples, 3, positions, positions), "labels": torch.randint(0, 10, (examples,))}


def _causal(model: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = model(**batch).logits[:, :-1]
    targets = batch["input_ids"][:, 1:]
    each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).mean(1)


def _classified(model: Any, batch: dict[str, Tensor]) -> Tensor:
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return functional.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def _imaged(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


_GPT2: dict[str, Any] = {
    "batch": _tokens, "losses": _causal, "examples": 16, "positions": 128, "tiny": (3, 16), "origin": ("wte", "wpe"),
    "fewer_rounds": True, "written_out": True,
}  # fmt: skip
SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="GPT-2 6x512", make=lambda: _gpt2(tied=False), **_GPT2),
        Shape(name="GPT-2 6x512 tied", make=lambda: _gpt2(tied=True), **_GPT2),
        Shape("BERT 4x256", _bert, _classified_tokens, _classified, 32, 64, (4, 16), ("_embeddings",)),
        Shape("ResNet-9 GroupNorm", _resnet, _images, _imaged, 32, 32, (4, 16), ("0.weight",), tokens=False),
    )
}
#: For GPUs alone, before the others.
LARGE = {
    shape.name: shape
    for shape in (
        Shape(name="GPT-2 124M", make=_gpt2_small, **_GPT2 | {"examples": 8, "positions": 512}),
        Shape(
            name="Llama 1B", make=_llama,
            **_GPT2 | {"examples": 4, "positions": 512, "origin": ("embed_tokens",), "written_out": False},
            parties=("non-private", "privctl", "opacus ghost"),
        ),
    )
}  # fmt: skip
