"""Tiny models of every kind, untrained, made on the spot."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BartConfig,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    ResNetConfig,
    RobertaConfig,
    T5Config,
    ViTConfig,
)

from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord
from privctl.models.choices import TaskName
from privctl.models.loading import load_for_training
from privctl.models.tasks.base import Task
from privctl.models.vocabulary import Vocabulary, frequent_words, private_vocabulary

TEXTS = (
    "The cat sat on the mat.",
    "A dog!",
    "the old dog and the old cat sat , and sat , and sat on a very old mat .",
    "On the mat sat a cat; the dog sat too.",
    "Very old.",
)
PAIRS = tuple(
    TextRecord(stretch=Stretch("a.jsonl line"), line=i, text=f"{source}\n{target}", start=len(source) + 1)
    for i, (source, target) in enumerate(zip(TEXTS, (*TEXTS[2:], *TEXTS[:2]), strict=True), start=1)
)
RECORDS = tuple(
    TextRecord(stretch=Stretch("a.jsonl line"), line=i, text=text, label="ab"[i % 2])
    for i, text in enumerate(TEXTS, start=1)
)

_SHAPE: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
}


def config(kind: str, **changes: Any) -> PretrainedConfig:
    """The architecture; its weights are drawn so wide that outputs differ visibly."""
    if kind == "gpt2":
        sizes = {"vocab_size": 90, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
        return GPT2Config(**{**sizes, "initializer_range": 0.3, "bos_token_id": 2, "eos_token_id": 3, **changes})
    if kind == "llama":
        return LlamaConfig(**{**_SHAPE, "num_key_value_heads": 1, "initializer_range": 0.3, **changes})
    if kind == "bert":
        return BertConfig(**{**_SHAPE, "initializer_range": 0.3, **changes})
    if kind == "roberta":
        return RobertaConfig(**{**_SHAPE, "initializer_range": 0.3, "pad_token_id": 0, **changes})
    if kind == "t5":
        sizes = {"vocab_size": 90, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        special = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0, "dropout_rate": 0.0}
        return T5Config(**{**sizes, **special, "initializer_factor": 2.0, **changes})
    if kind == "bart":
        sizes = {"vocab_size": 90, "d_model": 16, "max_position_embeddings": 40, "init_std": 0.3, "dropout": 0.0}
        sizes |= {f"{side}_{name}": size for side in ("encoder", "decoder")
                  for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
        special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
        return BartConfig(**{**sizes, **special, "forced_eos_token_id": 3, **changes})
    if kind == "vit":
        sizes = {key: value for key, value in _SHAPE.items() if key.startswith(("hidden", "inter", "num"))}
        return ViTConfig(**{**sizes, "image_size": 8, "patch_size": 4, "initializer_range": 0.3, **changes})
    return ResNetConfig(
        **{"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", **changes}
    )


def architecture(folder: Path, kind: str, **changes: Any) -> Path:
    """A folder with nothing but a config.json."""
    config(kind, **changes).save_pretrained(folder)
    return folder


def words() -> Vocabulary:
    return private_vocabulary(frequent_words(RECORDS, min_frequency=1))


def one_by_one(task: Task, network: torch.nn.Module, examples: Sequence[int], step: int) -> torch.Tensor:
    """Each example's loss from a batch of its own, without padding."""
    cpu = torch.device("cpu")
    return torch.cat([task.losses(network, task.batch([e], cpu, step)) for e in examples])


def same_records(data: Path) -> Path:
    """The records of ``data`` in another file or folder, for ``--held-out``, which may be no copy of the data."""
    folder = Path(tempfile.mkdtemp(dir=data.absolute().parent.parent))
    if data.is_dir():
        other = Path(shutil.copytree(data, folder / data.name))
        first = min(path for path in other.rglob("*") if path.is_file())
        first.rename(first.with_stem(f"{first.stem}-again"))
        return other
    other = folder / data.name
    if data.suffix == ".npz":
        np.savez_compressed(other, **np.load(data))
        return other
    lines = data.read_text().splitlines()
    names = lines[:1] if data.suffix == ".csv" else []
    other.write_text("".join(f"{line}\n" for line in [*names, *reversed(lines[len(names) :])]))
    return other


def save_pairs_model(folder: Path, kind: str) -> Path:
    """An untrained sequence-to-sequence model with its tokenizer."""
    start = architecture(folder.with_name(f"{folder.name}-start"), kind)
    model = load_for_training(start, TaskName.SEQ2SEQ_LM, vocabulary=words(), seed=3)
    model.network.save_pretrained(folder)
    model.companion.save_pretrained(folder)
    return folder
