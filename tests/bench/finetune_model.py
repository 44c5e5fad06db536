"""The model that ``finetune`` trains further, made here from public text, and the private text it has not seen.

Public: tldr-pages of commands that all systems have, and programs written by instruction. Private: tldr-pages of single
systems, whose commands the public half lacks.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.common import ROOT

if TYPE_CHECKING:
    from torch import Tensor, nn

_TEXT = ROOT.parent / "shared" / "data" / "text"
_END = "<|endoftext|>"
#: Steps over which the learning rate rises.
_WARMUP = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A GPT-2 with tied embeddings, and how long it is pretrained, in blocks of ``positions`` tokens."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int
    pretraining_tokens: int
    batch: int = 32
    learning_rate: float = 2e-3


SIZES = {
    "tiny": Size(layers=2, width=32, heads=2, vocabulary=512, positions=48, pretraining_tokens=50_000),
    "0.3M": Size(layers=4, width=64, heads=4, vocabulary=2048, positions=48, pretraining_tokens=2_500_000),
    "0.6M": Size(layers=4, width=96, heads=4, vocabulary=1024, positions=48, pretraining_tokens=2_000_000),
    "2.2M": Size(layers=4, width=192, heads=6, vocabulary=2048, positions=48, pretraining_tokens=2_500_000),
    "5.3M": Size(layers=6, width=256, heads=8, vocabulary=2048, positions=48, pretraining_tokens=2_500_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A pretrained model and the files of records, one JSON object a line; ``facts`` describe the pretraining."""

    model: Path
    members: Path
    held_out: Path
    public: Path
    facts: dict[str, Any]


def available() -> bool:
    """Whether the text is there."""
    return (_TEXT / "tldr_pairs.jsonl.gz").is_file()


def pretrained(size: Size, folder: Path, members: int, held_out: int) -> Made:
    """Pretrain into ``folder``, or take what an earlier call with the same size left there.

    ``members`` and ``held_out`` are numbers of private records.
    """
    paths = {name: folder / f"{name}.jsonl" for name in ("members", "held_out", "public")}
    facts, model, asked = folder / "facts.json", folder / "model", asdict(size)
    folder.mkdir(parents=True, exist_ok=True)
    public, private = _texts()
    lists = {"held_out": private[:held_out], "members": private[held_out : held_out + members], "public": public}
    for name, texts in lists.items():
        paths[name].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:members]))
    if not facts.is_file() or json.loads(facts.read_text())["size"] != asked:
        found = pretrain(size, public, model)
        facts.write_text(json.dumps({"size": asked, **found}, indent=2) + "\n")
    return Made(model=model, facts=json.loads(facts.read_text()), **paths)


@dataclass(frozen=True, slots=True)
class Domains:
    """Texts by what they are of: pages of ``common`` commands, ``programs``, and pages of ``single`` systems."""

    common: list[str]
    programs: list[str]
    single: list[str]


def texts_by_domain(draw: random.Random) -> Domains:
    """All texts, none of them twice; ``draw`` shuffles those of single systems, the records of a page together."""
    with gzip.open(_TEXT / "tldr_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    common: dict[str, None] = {}
    pages: dict[str, dict[str, None]] = {}
    for row in rows:
        text = f"{row['instruction']}: {row['output']}"
        place = common if row["page"].startswith("common/") else pages.setdefault(row["page"], {})
        place[text] = None
    programs = json.loads((_TEXT / "codegen-instruct.json").read_text(encoding="utf-8"))
    written = {f"{row['instruction']} {row['input']}\n{row['response']}": None for row in programs}
    known, order = {*common, *written}, sorted(pages)
    draw.shuffle(order)
    private: dict[str, None] = {}
    for page in order:
        private |= {text: None for text in pages[page] if text not in known}
    return Domains(list(common), [text for text in written if text not in common], list(private))


def _texts() -> tuple[list[str], list[str]]:
    """Public texts, shuffled, and private ones."""
    draw = random.Random(0)
    found = texts_by_domain(draw)
    public = [*found.common, *found.programs]
    draw.shuffle(public)
    return public, found.single


def _tokenizer(size: Size, texts: Sequence[str]) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=size.vocabulary, special_tokens=[_END], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, eos_token=_END, bos_token=_END, pad_token=_END, unk_token=_END
    )


def pretrain(size: Size, texts: Sequence[str], output: Path, others: Sequence[str] = ()) -> dict[str, Any]:
    """Train on the texts, joined and cut into blocks, without privacy; returns what was done.

    The tokenizer is made from them and ``others``.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    tokenizer = _tokenizer(size, [*texts, *others])
    ids = [token for text in texts for token in (*tokenizer(text)["input_ids"], tokenizer.eos_token_id)]
    blocks = torch.tensor(ids[: len(ids) // size.positions * size.positions]).view(-1, size.positions)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=size.positions, n_embd=size.width, n_layer=size.layers,
        n_head=size.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    steps = max(1, size.pretraining_tokens // (size.batch * size.positions))
    began = time.process_time()
    loss = _descend(model, blocks, steps, size)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return {
        "weights": sum(p.numel() for p in model.parameters()), "steps": steps, "tokens": len(ids),
        "last_loss": loss, "processor_s": time.process_time() - began,
    }  # fmt: skip


def _descend(model: nn.Module, blocks: Tensor, steps: int, size: Size) -> float:
    """AdamW with a cosine; returns the mean loss of the last tenth."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=size.learning_rate, weight_decay=0.1, betas=(0.9, 0.95))
    generator, losses = torch.Generator().manual_seed(0), []
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        if len(order) < size.batch:
            order = torch.randperm(len(blocks), generator=generator)
        chosen, order = blocks[order[: size.batch]], order[size.batch :]
        rate = min(1.0, (step + 1) / _WARMUP) * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = size.learning_rate * rate
        loss = model(input_ids=chosen, labels=chosen).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if step % 200 == 0:
            print(f"pretraining step {step} of {steps}: loss {losses[-1]:.3f}", flush=True)
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)
