"""Tiny models that label words or answer questions, with a tokenizer of word pieces, and records for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizerFast

from privctl.data.columns import Columns, HeadKind
from privctl.data.texts import TextRecord, read_texts
from privctl.models.choices import TaskName
from privctl.models.loading import TrainingModel, load_for_training
from tests.models.tasks.small import config

NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (*"abcdefghijklmnopqrstuvwxyz.,?'", *(f"##{each}" for each in "abcdefghijklmnopqrstuvwxyz"), "the", "in",
          "is", "cat", "dog", "rome", "##ome", "##at", "old", "who")  # fmt: skip
WORDS: tuple[tuple[list[str], list[str]], ...] = (
    (["The", "cat", "lives", "in", "Rome", "."], ["O", "O", "O", "O", "B-LOC", "O"]),
    (["Anna", "Rossi", "likes", "New", "York"], ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]),
    (["Dogs"], ["O"]),
    (["Rome", "Anna", "is", "old"], ["B-LOC", "B-PER", "O", "O"]),
)
CONTEXT = "The old cat lives in Rome. Anna's dog is in York, the old town."
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"question": "Where is the cat?", "context": CONTEXT, "answers": {"text": ["Rome"], "answer_start": [21]}},
    {"question": "Who is in York?", "context": CONTEXT, "answers": {
        "text": ["Anna's dog", "dog"], "answer_start": [27, 34]}},
    {"question": "Who?", "context": "A dog.", "answer": "A dog", "answer_start": 0},
    {"question": "Where is York?", "context": "The cat is old.", "answers": {"text": [], "answer_start": []}},
)  # fmt: skip
_PROBLEMS = {TaskName.TOKEN_CLASSIFICATION: HeadKind.TOKENS, TaskName.QUESTION_ANSWERING: HeadKind.SPAN}


def save_tokenizer(folder: Path) -> Path:
    """A tokenizer as BERT's, of single letters and a few words."""
    vocabulary = {piece: i for i, piece in enumerate((*SPECIAL, *PIECES))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def model_for(folder: Path, task: TaskName, kind: str = "bert", **changes: Any) -> TrainingModel:
    """An untrained model for ``task``."""
    config(kind, **changes).save_pretrained(save_tokenizer(folder))
    labels = NAMES if task is TaskName.TOKEN_CLASSIFICATION else None
    return load_for_training(folder, task, labels=labels, seed=3)


def save(folder: Path, task: TaskName) -> Path:
    """Such a model, saved as its class."""
    model = model_for(folder.with_name(f"{folder.name}-start"), task)
    model.network.save_pretrained(folder)
    model.companion.save_pretrained(folder)
    return folder


def write(path: Path, task: TaskName, copies: int = 1, word: str = "very") -> Path:
    """The records for ``task`` in a file; each copy has so many times the ``word`` more."""
    lines: list[dict[str, Any]] = []
    for i in range(copies):
        more = [word] * i
        if task is TaskName.TOKEN_CLASSIFICATION:
            lines += [{"tokens": [*words, *more], "ner_tags": [*tags, *["O"] * i]} for words, tags in WORDS]
        else:
            lines += [{**question, "context": " ".join([question["context"], *more])} for question in QUESTIONS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def records(path: Path, task: TaskName) -> list[TextRecord]:
    """The records of ``write``, read."""
    return read_texts(write(path, task), labelled=True, columns=Columns(problem=_PROBLEMS[task]))
