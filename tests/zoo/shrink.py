"""Tiny random models of every architecture that the installed transformers knows for a task."""

from __future__ import annotations

import inspect
import json
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from tests.zoo.sizes import KEPT, LAYERS, PIXELS, SAMPLES, SPECIAL_SETTINGS, STAGES, TINY

TASKS: dict[str, Any] = {
    "causal-lm": MODEL_FOR_CAUSAL_LM_MAPPING,
    "masked-lm": MODEL_FOR_MASKED_LM_MAPPING,
    "text-classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "token-classification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "question-answering": MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "image-classification": MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    "audio-classification": MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
}
#: Tasks on texts whose head has two outputs here.
_OF_TWO = ("text-classification", "token-classification", "question-answering", "audio-classification")
WORDS = [f"w{i}" for i in range(24)]
ROLES = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
#: Numbers that a tiny network may hold; what stays larger is a builder that does not know a setting.
MOST = 8_000_000


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
    """The configuration of ``model_type`` with every size that is known by its name made small.

    Where the network for ``task`` is the text part of a larger model, the configuration is that part's, as
    ``AutoModelForCausalLM.from_config`` takes it.
    """
    kind = next(each for each in TASKS[task] if each.model_type == model_type)
    config = _shrunk(kind, task)
    wanted = network_of(task, kind).config_class
    if isinstance(config, wanted):
        return config
    parts = (getattr(config, name, None) for name in kind.sub_configs)
    return next((part for part in parts if isinstance(part, wanted)), config)


def network_of(task: str, kind: Any) -> Any:
    """The class of the network for ``task`` with a configuration of the class ``kind``."""
    found = TASKS[task][kind]
    return found[0] if isinstance(found, tuple) else found


def _shrunk(kind: Any, task: str = "") -> Any:
    special = SPECIAL_SETTINGS.get(kind.model_type, {}) | SPECIAL_SETTINGS.get(f"{task}/{kind.model_type}", {})
    default = kind()
    stated = default.to_dict()
    known = set(stated) | set(getattr(kind, "attribute_map", {})) | set(inspect.signature(kind).parameters)
    settings = {name: value for name, value in TINY.items() if name in known and _alike(default, name, value)}
    settings |= {name: _stages(stated[name], STAGES[name]) for name in STAGES if _is_numbers(stated.get(name))}
    if "kv_lora_rank" in known:
        settings["num_key_value_heads"] = settings.get(
            "num_attention_heads", TINY["num_attention_heads"]
        )  # latent attention: each head its own keys
    for name in getattr(kind, "sub_configs", None) or {}:
        part = _stated(default, name)
        if isinstance(part, PreTrainedConfig) and part.model_type:
            settings[name] = _shrunk(type(part)).to_dict()
    settings |= _layers(default, settings) | special
    settings = {name: value for name, value in settings.items() if value is not KEPT}
    while True:
        try:
            return kind(**settings)
        except Exception as error:
            culprit = next((name for name in reversed(settings) if _blames(error, kind, name)), None)
            if culprit is None:
                raise Unbuildable(f"configuration: {one_line(error)}") from None
            del settings[culprit]


def _blames(error: Exception, kind: Any, name: str) -> bool:
    return name in str(error) or getattr(kind, "attribute_map", {}).get(name, name) in str(error)


def _stated(config: Any, name: str) -> Any:
    """A setting, or None where it is not the same in each layer."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, int) for each in value)


def _stages(stated: Sequence[int], value: int) -> list[int]:
    """A number for each stage; heads and channels grow no more."""
    return [value] * len(stated)


def _layers(default: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """So many layers that each kind of them occurs, in every setting that says how many or which."""
    layers, chosen = LAYERS, {}
    for name in ("layer_types", "mlp_layer_types"):
        stated = _stated(default, name)
        if isinstance(stated, list) and stated:
            kinds = sorted(set(stated), key=stated.index)
            layers = max(layers, len(kinds))
            chosen[name] = kinds
    counts = {name: layers for name in ("num_hidden_layers", "num_layers", "n_layer") if name in settings}
    return counts | {name: (kinds * layers)[:layers] for name, kinds in chosen.items()}


def _alike(default: Any, name: str, value: Any) -> bool:
    """Whether a setting is one number, as here, and not a list of stages or switched off."""
    stated = _stated(default, name)
    if name.endswith("_token_id"):
        return not isinstance(stated, list)
    if name in ("num_key_value_heads", "num_labels"):
        return True
    if name == "head_dim" and stated is None:
        return True  # it is computed from the width, or differs between layers
    if name == "patch_size" and isinstance(stated, int):
        return stated > value
    return isinstance(stated, int) and not isinstance(stated, bool) and stated != value


def build(task: str, model_type: str, folder: Path) -> None:
    """Write a tiny random network of ``model_type`` for ``task`` into ``folder``, with what it reads data by.

    Raises Unbuildable where this builder cannot.
    """
    torch.manual_seed(0)
    try:
        config = tiny_config(task, model_type)
        kind = network_of(task, next(each for each in TASKS[task] if each.model_type == model_type))
        if task in _OF_TWO:
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
    if task == "audio-classification":
        (folder / "preprocessor_config.json").write_text(json.dumps(_reading(config)))
        _name_labels(folder / "config.json")
        return
    if task in _OF_TWO:
        _name_labels(folder / "config.json")
    save_tokenizer(folder)


def _reading(config: Any) -> dict[str, Any]:
    """How a network of ``config`` reads sounds: as small as it is."""
    if config.model_type == "audio-spectrogram-transformer":
        return {"num_mel_bins": config.num_mel_bins, "max_length": config.max_length}
    if config.model_type == "whisper":
        return {"feature_size": config.num_mel_bins, "chunk_length": 1}
    return {"max_length": SAMPLES}


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
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 2), ("</s>", 3)]
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
    if task == "audio-classification":
        return _write_sounds(path, count, random)
    where = path.with_suffix(".jsonl")
    records = []
    for _ in range(count):
        words = random.choice(WORDS, int(random.integers(3, 13))).tolist()
        record: dict[str, Any] = {"text": " ".join(words)}
        if task == "token-classification":
            record = {"tokens": words, "ner_tags": [f"LABEL_{int(random.integers(2))}" for _ in words]}
        if task == "question-answering":
            answer = {"answer": words[1], "answer_start": len(words[0]) + 1}
            record = {"question": words[-1], "context": record["text"], **answer}
        if task == "text-classification":
            record["label"] = f"LABEL_{int(random.integers(2))}"
        records.append(json.dumps(record))
    where.write_text("\n".join(records) + "\n")
    return where


def _write_sounds(path: Path, count: int, random: np.random.Generator) -> Path:
    """Noise of two thirds to all of the samples that the tiny networks read, in class folders."""
    for i in range(count):
        folder = path / f"LABEL_{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        samples = random.normal(scale=0.2, size=int(random.integers(2 * SAMPLES // 3, SAMPLES)))
        write_wav(folder / f"{i:03}.wav", samples)
    return path


def write_wav(path: Path, samples: Any, rate: int = 16000) -> None:
    """Samples in [-1, 1] as 16-bit PCM."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
