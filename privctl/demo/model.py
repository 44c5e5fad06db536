"""The demonstration's model: a small GPT-2 trained from random weights, with a tokenizer made from public words.

It is trained twice: without noise until it memorizes its records, and privately.
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

#: Notes drawn; each is a member with probability 1/2.
NOTES = 800
#: The privacy budget of the private training.
PRIVATE_EPSILON = 0.5

_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFiles:
    """The files of a demonstration: the trained model with its report, its members and its non-members."""

    model: Path
    members: Path
    nonmembers: Path
    dataset_size: int
    report: PrivacyReport


def request(folder: Path, seed: int, dataset_size: int) -> RetrainRequest:
    """The request for training without noise: clipped gradients, and enough epochs to memorize records."""
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
    """Draw ``notes`` notes, train on the members and write everything to ``folder``, which must exist.

    ``seed`` determines the notes, who is a member, the initial weights and the order of the examples; nothing here is
    private. Raises CommandError if ``folder`` already contains a demonstration.
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
    """Train the same network on the same records with DP-SGD at ``delta``. Sampling and noise are not seeded."""
    report = run_training(job_for(private_request(files, delta)), Session(progress=progress))
    assert report is not None  # there is one process
    return report


def private_request(files: DemoFiles, delta: float) -> RetrainRequest:
    """The request for private training, with ``PRIVATE_EPSILON`` at ``delta``: large batches and few steps."""
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
    """Limit torch to one thread: at this size a second one gains little, and slows both on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per word, punctuation mark or digit, and ``<s>`` and ``</s>`` around a text."""
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
    """The configuration of a GPT-2 with two layers of width 64 and the vocabulary of ``tokenizer``."""
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
