"""Adapters merged into their layers: every layer has to compute what it did, however the whole network rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from privctl.domain.errors import InputError
from privctl.train.network.adapters import adapted, merged
from privctl.train.release.reload_check import TOLERANCE, answers, distance
from privctl.train.settings.request import ModelRequest

REQUEST = ModelRequest(path=Path("model"), lora_rank=4)
CONFIGS = {
    "llama": LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2,
    ),
    "gpt2": GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2),
}  # fmt: skip
#: Large enough adapters to matter, and ones that the first step of a training leaves.
SIZES = (pytest.param(1.0, marks=pytest.mark.slow), 1e-4)


def trained(kind: str, size: float) -> Any:
    torch.manual_seed(3)
    joined = adapted(AutoModelForCausalLM.from_config(CONFIGS[kind]), REQUEST, 0)
    with torch.no_grad():
        for name, parameter in joined.named_parameters():
            if "lora_B" in name:
                parameter.copy_(size * torch.randn(parameter.shape))
    return joined


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("size", SIZES)
def test_honest_merges_pass(kind: str, size: float) -> None:
    joined = trained(kind, size)
    inputs = {"input_ids": torch.arange(12).reshape(2, 6)}
    before = answers(joined, inputs)
    assert distance(answers(merged(joined, REQUEST), inputs), before) < 1e-5


def weights_of(plain: nn.Module) -> list[Tensor]:
    """Square matrices of two layers that were adapted."""
    return [p for n, p in plain.named_parameters() if p.shape == (16, 16) and n.endswith("weight")][:2]


def plain_base(joined: Any) -> nn.Module:
    """The network as it was before it got adapters, its weights copied."""
    base: nn.Module = copy.deepcopy(joined.get_base_model())
    for module in list(base.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "base_layer"):
                setattr(module, name, child.base_layer)
    return base


def swapped(plain: nn.Module, before: nn.Module) -> None:
    first, second = weights_of(plain)
    first_was = first.clone()
    first.copy_(second)
    second.copy_(first_was)


def transposed(plain: nn.Module, before: nn.Module) -> None:
    weight = weights_of(plain)[1]
    weight.copy_(weight.T.clone())


def half_merged(plain: nn.Module, before: nn.Module) -> None:
    weight, was = weights_of(plain)[1], weights_of(before)[1]
    weight.copy_((weight + was) / 2)


def transposed_product(plain: nn.Module, before: nn.Module) -> None:
    weight, was = weights_of(plain)[1], weights_of(before)[1]
    weight.copy_(was + (weight - was).T)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", [swapped, transposed, half_merged, transposed_product])
def test_a_badly_merged_layer_is_refused(
    fault: Callable[[nn.Module, nn.Module], None], size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the adapter is so small that the answers differ by no more than rounding is allowed to."""
    joined = trained("llama", size)
    before, original = plain_base(joined), joined.merge_and_unload

    def wrong() -> nn.Module:
        plain: nn.Module = original()
        with torch.no_grad():
            fault(plain, before)
        return plain

    monkeypatch.setattr(joined, "merge_and_unload", wrong)
    with pytest.raises(InputError, match="does not compute what it did with its adapter"):
        merged(joined, REQUEST)


def test_half_of_a_small_adapter_passes_by_the_answers_alone() -> None:
    """So the whole network's answers are not enough, and each layer is looked at."""
    joined = trained("llama", 1e-4)
    inputs = {"input_ids": torch.arange(12).reshape(2, 6)}
    expected, before = answers(joined, inputs), plain_base(joined)
    plain = merged(joined, REQUEST)
    with torch.no_grad():
        half_merged(plain, before)
    assert 0 < distance(answers(plain, inputs), expected) < TOLERANCE
