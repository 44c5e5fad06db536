"""A tiny language of words and digits, models that speak it, and data with canaries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from audits.canaries.design import PlantRequest
from audits.canaries.manifest import Coins, Manifest, commitment_of, encode_manifest
from audits.canaries.plant import plant
from audits.findings import Findings
from audits.scores.causal import CausalScorer
from audits.scores.scorer import compute_scores, plan_scoring
from privctl.data.records import read_records
from privctl.models.language import LanguageModel, load_model
from tests.audits.tiny import write_jsonl

WORDS = [f"w{a}{b}" for a in "abcdefghij" for b in "klmnop"]
VOCABULARY = ["<unk>", "<s>", "</s>", "pin", *"0123456789", *WORDS]


def texts(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(4, 12))) for _ in range(count)]


def save_tokenizer(folder: Path, extra: Sequence[str] = ()) -> None:
    words = [*VOCABULARY, *extra]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    wrapped.save_pretrained(folder)


def new_model(folder: Path, *, seed: int = 0, scale: float = 1.0, extra: Sequence[str] = ()) -> Path:
    """A Llama with random weights times ``scale``, and its tokenizer."""
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=len(VOCABULARY) + len(extra),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)
    network.save_pretrained(folder)
    save_tokenizer(folder, extra)
    return folder


def train(folder: Path, data: Path, epochs: int, rate: float = 1e-2) -> None:
    """Go on training the model at ``folder`` on every record of ``data``."""
    model = load_model(folder, device="cpu")
    network: Any = model.network.requires_grad_(True)
    rows = [model.tokenizer(record.text)["input_ids"] for record in read_records(data)]
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    source = random.Random(0)
    for _ in range(epochs):
        source.shuffle(rows)
        for begin in range(0, len(rows), 32):
            batch = rows[begin : begin + 32]
            width = max(len(row) for row in batch)
            ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
            labels = torch.tensor([row + [-100] * (width - len(row)) for row in batch])
            optimizer.zero_grad()
            network(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
    network.save_pretrained(folder)


def planted(folder: Path, *, records: int = 80, **settings: Any) -> Manifest:
    """Data with canaries: ``data.jsonl``, ``planted.jsonl`` and ``m.json`` in ``folder``.

    The same ones each time, though the manifest says otherwise: a test must not hang on coins.
    """
    data = folder / "data.jsonl"
    if not data.exists():
        write_jsonl(data, texts(records, 1))
    arguments = {"count": 40, "templates": ("pin {digits:6}",), "seed": 1, **settings}
    manifest = plant(PlantRequest(data=data, output=folder / "planted.jsonl", manifest=folder / "m.json", **arguments))
    manifest = replace(manifest, coins=Coins.OPERATING_SYSTEM)
    manifest = replace(manifest, commitment=commitment_of(manifest))
    (folder / "m.json").write_bytes(encode_manifest(manifest))
    return manifest


def judged(model: LanguageModel, part: Any, alpha: float = 0.05) -> Findings:
    """What a part finds, all else done as an audit does it."""
    found: Findings = part.judge(compute_scores(plan_scoring(CausalScorer(model), part.rows)), alpha)
    return found
