"""Tiny random models of every architecture that the installed transformers knows for a task."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from tests.zoo.text_settings import with_own

TASKS: dict[str, Any] = {
    "causal-lm": MODEL_FOR_CAUSAL_LM_MAPPING,
    "masked-lm": MODEL_FOR_MASKED_LM_MAPPING,
    "text-classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "image-classification": MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
}
WORDS = [f"w{i}" for i in range(24)]
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
ROLES = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
SIZE = 32
#: Numbers that a tiny network may hold; what stays larger is a builder that does not know a setting.
MOST = 8_000_000
PIXELS = 32

#: Settings by name, with their tiny values. A setting that a configuration lacks is not given to it.
_WIDTH, _HEADS, _HEAD, _LAYERS, _INNER = 32, 4, 8, 2, 48
_TINY: dict[str, Any] = {
    "vocab_size": SIZE, "hidden_size": _WIDTH, "d_model": _WIDTH, "n_embd": _WIDTH, "embedding_size": _WIDTH,
    "dim": _WIDTH, "emb_dim": _WIDTH, "n_embed": _WIDTH, "embed_dim": _WIDTH, "word_embed_proj_dim": _WIDTH,
    "attention_hidden_size": _WIDTH, "projection_dim": _WIDTH, "hidden_dim": _WIDTH, "n_inner": _INNER,
    "num_hidden_layers": _LAYERS, "num_layers": _LAYERS, "n_layer": _LAYERS, "n_layers": _LAYERS,
    "encoder_layers": _LAYERS, "decoder_layers": _LAYERS, "num_decoder_layers": _LAYERS,
    "num_encoder_layers": _LAYERS,
    "num_attention_heads": _HEADS, "n_head": _HEADS, "n_heads": _HEADS, "num_heads": _HEADS,
    "encoder_attention_heads": _HEADS, "decoder_attention_heads": _HEADS, "num_key_value_heads": 2,
    "head_dim": _HEAD, "d_kv": _HEAD, "d_head": _HEAD, "kv_channels": _HEAD, "attention_head_size": _HEAD,
    "intermediate_size": _INNER, "ffn_dim": _INNER, "d_ff": _INNER, "encoder_ffn_dim": _INNER,
    "decoder_ffn_dim": _INNER, "d_inner": _INNER, "moe_intermediate_size": _INNER, "ffn_hidden_size": _INNER,
    "shared_expert_intermediate_size": _INNER, "intermediate_size_mlp": _INNER,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "context_length": 64,
    "image_size": PIXELS, "patch_size": 8, "num_labels": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": _HEAD, "qk_rope_head_dim": _HEAD, "v_head_dim": _HEAD,
    "num_hash_buckets": 64, "rotary_dim": 4, "state_size": 8, "mamba_d_state": 8, "time_step_rank": 4,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
    "mask_token_id": 4, "decoder_start_token_id": 2, "unk_token_id": 1,
    "sliding_window": 8, "attention_window": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": _HEAD,
    "linear_value_head_dim": _HEAD,
}  # fmt: skip


class Unbuildable(Exception):
    """The generic builder makes no tiny network of this configuration; that says nothing about privctl."""


def one_line(error: BaseException) -> str:
    """The beginning of an error's text, without the places of this run."""
    text = " ".join(str(error).split())
    for word in text.split():
        if word.startswith("/tmp"):
            text = text.replace(word, Path(word).name)
    return f"{type(error).__name__}: {text}"[:240]


def pairs() -> Iterator[tuple[str, str]]:
    """Every task with the model type of every configuration that has a network for it."""
    for task, mapping in TASKS.items():
        for config in sorted({each.model_type for each in mapping if getattr(each, "model_type", "")}):
            yield task, config


def tiny_config(task: str, model_type: str) -> Any:
    """The configuration of ``model_type`` with every size that is known by its name made small."""
    kind = next(each for each in TASKS[task] if each.model_type == model_type)
    return _shrunk(kind)


def _shrunk(kind: Any) -> Any:
    default = kind()
    known = set(default.to_dict()) | set(getattr(kind, "attribute_map", {})) | set(inspect.signature(kind).parameters)
    settings = {name: value for name, value in _TINY.items() if name in known and _alike(default, name, value)}
    if "kv_lora_rank" in known:
        settings["num_key_value_heads"] = _HEADS  # latent attention gives each head its own keys
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        if getattr(default, name, None) is not None and hasattr(part, "model_type"):
            settings[name] = _shrunk(type(getattr(default, name))).to_dict()
    settings |= _layers(default, settings)
    settings = with_own(kind.model_type, settings)
    while True:
        try:
            return kind(**settings)
        except Exception as error:
            culprit = next((name for name in reversed(settings) if name in str(error)), None)
            if culprit is None:
                raise Unbuildable(f"configuration: {one_line(error)}") from None
            del settings[culprit]


def _layers(default: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """So many layers that each kind of them occurs, in every setting that says how many or which."""
    layers, chosen = _LAYERS, {}
    for name in ("layer_types", "mlp_layer_types"):
        stated = getattr(default, name, None)
        if isinstance(stated, list) and stated:
            kinds = sorted(set(stated), key=stated.index)
            layers = max(layers, len(kinds))
            chosen[name] = kinds
    counts = {name: layers for name in ("num_hidden_layers", "num_layers", "n_layer") if name in settings}
    return counts | {name: (kinds * layers)[:layers] for name, kinds in chosen.items()}


def _alike(default: Any, name: str, value: Any) -> bool:
    """Whether a setting is one number, as here, and not a list of stages or switched off."""
    stated = getattr(default, name, None)
    if name.endswith("_token_id"):
        return not isinstance(stated, list)
    if name in ("num_key_value_heads", "num_labels"):
        return True
    return isinstance(stated, int) and not isinstance(stated, bool) and stated != value


def build(task: str, model_type: str, folder: Path) -> None:
    """Write a tiny random network of ``model_type`` for ``task`` into ``folder``, with what it reads data by.

    Raises Unbuildable where this builder cannot.
    """
    torch.manual_seed(0)
    try:
        config = tiny_config(task, model_type)
        kind = TASKS[task][type(config)]
        kind = kind[0] if isinstance(kind, tuple) else kind
        if task == "text-classification":
            config.num_labels = 2  # BART's configuration has three
        with torch.device("meta"):
            size = sum(p.numel() for p in kind(config).parameters())
        if size > MOST:
            raise Unbuildable(f"{size} numbers, where {MOST} is the most")
        network = kind(config)
        config.architectures = [kind.__name__]
        network.save_pretrained(folder)
    except Unbuildable:
        raise
    except Exception as error:
        raise Unbuildable(f"network: {one_line(error)}") from None
    if task == "image-classification":
        return
    if task == "text-classification":
        _name_labels(folder / "config.json")
    save_tokenizer(folder)


def _name_labels(path: Path) -> None:
    """State both classes, which transformers leaves out as if every family had two unless told."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["id2label"] = {"0": "LABEL_0", "1": "LABEL_1"}
    config["label2id"] = {"LABEL_0": 0, "LABEL_1": 1}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of 24 words and five special tokens, whose template is BERT's."""
    vocabulary = {name: i for i, name in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="right", **{f"{role}_token": name for role, name in ROLES.items()}
    )
    fast.save_pretrained(folder)
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    if len(loaded(WORDS[0]).input_ids) < len(fast(WORDS[0]).input_ids):
        _save_bytes(type(loaded), folder)


def _save_bytes(kind: Any, folder: Path) -> None:
    """A tokenizer of single bytes, for families whose own class cuts text into bytes whatever the folder says."""
    pieces = [*SPECIAL, "\u0120", *sorted(set("".join(WORDS)))]
    roles = {f"{role}_token": name for role, name in ROLES.items()}
    kind(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], **roles).save_pretrained(folder)


def write_data(task: str, path: Path, *, count: int = 24, seed: int = 0, channels: int = 3) -> Path:
    """``count`` records for ``task``: sentences of 3 to 12 words, with labels for classifiers, or images."""
    random = np.random.default_rng(seed)
    if task == "image-classification":
        where = path.with_suffix(".npz")
        pixels = random.integers(0, 256, (count, PIXELS, PIXELS, channels), dtype=np.uint8)
        np.savez(where, images=pixels, labels=random.integers(0, 2, count))
        return where
    where = path.with_suffix(".jsonl")
    records = []
    for _ in range(count):
        record = {"text": " ".join(random.choice(WORDS, int(random.integers(3, 13))))}
        if task == "text-classification":
            record["label"] = f"LABEL_{int(random.integers(2))}"
        records.append(json.dumps(record))
    where.write_text("\n".join(records) + "\n")
    return where
