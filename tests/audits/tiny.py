"""Tiny models, tokenizers and data sets, made on the spot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

WORDS = [f"w{i}" for i in range(60)]
SIZE = len(WORDS) + 3

_SHAPE = {"vocab_size": SIZE, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **_SHAPE,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **_SHAPE),
    "llama": lambda: LlamaConfig(num_key_value_heads=2, **_LLAMA),
    "neox": lambda: GPTNeoXConfig(**_LLAMA),
    "gemma2": lambda: Gemma2Config(num_key_value_heads=2, head_dim=8, final_logit_softcapping=2.0, **_LLAMA),
}


def save_tokenizer(folder: Path, *, bos: bool = False, words: Sequence[str] = WORDS) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {word: i + 3 for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


def save_model(folder: Path, kind: str = "llama", *, bos: bool = False, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(CONFIGS[kind]())
    with torch.no_grad():  # initial weights are so small that every token would score alike
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    network.save_pretrained(folder)
    save_tokenizer(folder, bos=bos)
    return folder


def sentences(count: int, seed: int, longest: int = 20) -> list[str]:
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(3, longest))) for _ in range(count)]


def write_jsonl(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
