"""The demonstration's model: a small GPT-2 trained from random weights, with a tokenizer made from public words.

It is trained twice: without noise until it knows its records, and privately.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import GPT2Config, PreTrainedTokenizerFast

from privctl.demo.records import WORDS, draw_notes, jsonl
from privctl.domain.mechanism import Optimizer
from privctl.domain.progress import Progress
from privctl.domain.report import PrivacyReport
from privctl.storage.commit import write_together
from privctl.train.methods import method_named
from privctl.train.preparation.prepare import prepare as job_for
from privctl.train.run import run_training
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.settings.session import Session

#: Notes drawn; a fair coin makes about half of them members.
NOTES = 800
#: What the private training may spend.
PRIVATE_EPSILON = 0.5

_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFiles:
    """The files of a demonstration: a trained directory with its report, and the records it saw and did not see."""

    model: Path
    members: Path
    nonmembers: Path
    dataset_size: int
    report: PrivacyReport


def request(folder: Path, seed: int, dataset_size: int) -> RetrainRequest:
    """The training request: long enough to memorize records, at a constant learning rate, every gradient clipped."""
    return RetrainRequest(
        method=method_named("clipped"),
        model=ModelRequest(path=folder / "start", from_scratch=True),
        data=DataRequest(train=folder / "members.jsonl", held_out=folder / "nonmembers.jsonl"),
        output=folder / "model",
        epochs=32,
        learning_rate=0.35,
        optimizer=Optimizer.SGD,
        batch_size=min(16, dataset_size),
        device="cpu",
        seed=seed,
    )


def prepare(folder: Path, progress: Progress, *, seed: int = 0, notes: int = NOTES) -> DemoFiles:
    """Draw the notes, train on the members and write everything into ``folder``, which must exist.

    ``seed`` makes the notes, the coin, the first weights and the visiting order; nothing here is private. Raises
    CommandError where ``folder`` already holds a demonstration.
    """
    notes_drawn = draw_notes(notes, seed)
    members, nonmembers = folder / "members.jsonl", folder / "nonmembers.jsonl"
    write_together({members: jsonl(notes_drawn.members), nonmembers: jsonl(notes_drawn.nonmembers)})
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "start")
    architecture(tokenizer).save_pretrained(folder / "start")
    with one_thread():
        report = run_training(job_for(request(folder, seed, len(notes_drawn.members))), Session(progress=progress))
    assert report is not None
    return DemoFiles(
        model=folder / "model",
        members=members,
        nonmembers=nonmembers,
        dataset_size=len(notes_drawn.members),
        report=report,
    )


def train_privately(files: DemoFiles, delta: float, progress: Progress) -> PrivacyReport:
    """Train the same network on the same records by DP-SGD; Poisson batches and noise are drawn afresh each time."""
    report = run_training(job_for(private_request(files, delta)), Session(progress=progress))
    assert report is not None  # there is one process
    return report


def private_request(files: DemoFiles, delta: float) -> RetrainRequest:
    """The private training's request, for ``PRIVATE_EPSILON`` at ``delta``: large batches, few steps, a high rate."""
    return RetrainRequest(
        method=method_named("dp-sgd"),
        model=ModelRequest(path=files.model.with_name("start"), from_scratch=True),
        data=DataRequest(train=files.members, held_out=files.nonmembers),
        budget=BudgetRequest(epsilon=PRIVATE_EPSILON, delta=delta),
        output=files.model.with_name("dp-sgd"),
        epochs=20,
        learning_rate=0.006,
        optimizer=Optimizer.ADAMW,
        batch_size=min(128, files.dataset_size // 2),
        device="cpu",
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: at this size a second gains little, and on a busy machine both wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, sign or digit; ``<s>`` and ``</s>`` around each text."""
    vocabulary = {word: i for i, word in enumerate((*_SPECIAL.values(), *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    ends = [(token, vocabulary[token]) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    wrap: Any = PreTrainedTokenizerFast  # its constructor is not typed
    wrapped: PreTrainedTokenizerFast = wrap(
        tokenizer_object=tokenizer, model_max_length=_LENGTH, padding_side="right", **_SPECIAL
    )
    return wrapped


def architecture(tokenizer: PreTrainedTokenizerFast) -> GPT2Config:
    """A GPT-2 of two layers, 64 wide."""
    return GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=_LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
