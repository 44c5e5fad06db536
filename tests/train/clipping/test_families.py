"""The engine against plain autograd on small instances of model families of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.convnext.modeling_convnext import ConvNextLayerNorm

from privctl.domain.errors import InputError
from privctl.train.clipping.normalisation import channel_layer_norm
from privctl.train.clipping.rules import rule_for
from tests.train.clipping.support import agree, causal, classified, masked, run, squared, tokens

TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**TEXT, "intermediate_size": 24, "max_position_embeddings": 16}
NO_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
GROUPED = {**WIDE, **NO_IDS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def gpt2(**changes: Any) -> nn.Module:
    settings = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, **NO_IDS}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**{**settings, **changes}))


CAUSAL: dict[str, Callable[[], nn.Module]] = {
    "gpt2 tied": gpt2,
    "gpt2 untied": lambda: gpt2(tie_word_embeddings=False),
    "gpt-neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**WIDE, **NO_IDS)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**GROUPED)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**TEXT, n_layer=2, n_head=2, **NO_IDS)),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(**{**TEXT, **NO_IDS}, ffn_dim=24, max_position_embeddings=16, word_embed_proj_dim=16)
    ),
}


@pytest.mark.parametrize("family", CAUSAL)
def test_causal_language_models(family: str) -> None:
    model = CAUSAL[family]().eval()
    with torch.no_grad():
        for p in model.parameters():  # past initial zeros and ones, and far enough that gradients differ
            p.add_(0.1 * torch.randn_like(p))
    agree(model, causal, tokens(5, 9, 40))


@pytest.mark.parametrize("kind", [hf.BertForMaskedLM, hf.BertForSequenceClassification])
def test_bert_is_clipped_as_example_by_example(kind: Any) -> None:
    model = kind(hf.BertConfig(**WIDE, num_labels=3)).eval()
    batch = tokens(5, 9, 40)
    if kind is hf.BertForMaskedLM:
        agree(model, masked, batch)
    else:
        agree(model, classified, {**batch, "labels": torch.tensor([0, 1, 2, 1, 0])})


def test_vit_is_clipped_as_example_by_example() -> None:
    shape = {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 3}
    settings = {name: value for name, value in WIDE.items() if name not in ("vocab_size", "max_position_embeddings")}
    model = hf.ViTForImageClassification(hf.ViTConfig(**settings, **shape)).eval()
    batch = {"pixel_values": torch.randn(4, 3, 8, 8), "labels": torch.tensor([0, 1, 2, 1])}
    agree(model, classified, batch)
    agree(model.train(), classified, batch)


def resnet() -> nn.Module:
    settings = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    return hf.ResNetForImageClassification(hf.ResNetConfig(**settings))


def test_resnet_needs_frozen_statistics() -> None:
    model = resnet()
    batch = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 1])}
    with pytest.raises(InputError, match=r"module '.*' \(BatchNorm2d\) normalizes .*; put it in evaluation mode"):
        run(model, classified, batch, 1.0)
    agree(model.eval(), classified, batch)


@pytest.mark.parametrize("data_format", ["channels_first", "channels_last"])
def test_convnext_normalizes_the_channels_by_its_own_rule(data_format: str) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), ConvNextLayerNorm(4, data_format=data_format), nn.Conv2d(4, 2, 1))
    nn.init.normal_(model[1].weight)
    assert rule_for(model[1]) is channel_layer_norm
    agree(model, squared, {"x": torch.randn(5, 4, 4, 4)})  # as many pixels a row as channels


def test_convnext() -> None:
    torch.manual_seed(0)
    config = hf.ConvNextConfig(
        image_size=16, patch_size=2, hidden_sizes=[4, 6], depths=[1, 2], num_stages=2, layer_scale_init_value=0.5
    )
    agree(hf.ConvNextForImageClassification(config), classified, {
        "pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 1, 0]),
    })  # fmt: skip
