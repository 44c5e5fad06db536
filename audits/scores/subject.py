"""The audited model, and how its records are read, encoded and scored, which depends on the model's task.

A score is always a log-probability: of each next token for a causal language model, of each token when masked for a
masked one, of each token of the target for a sequence-to-sequence one, of the label for a classifier, of each word's
label, and of both ends of an answer. Every attack that only needs a record's mean log-probability works for all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from audits.scores.annotated import AnswerSubject, WordSubject
from audits.scores.causal import CausalSubject
from audits.scores.classes import ImageSubject, TextClassifierSubject
from audits.scores.masked import MaskedSubject
from audits.scores.rows import Rows
from audits.scores.scorer import Scorer
from audits.scores.seq2seq import PairSubject
from audits.scores.sounds import SoundSubject
from audits.scores.tasks import (
    AUDIO_CLASSIFICATION,
    CAUSAL_LM,
    IMAGE_CLASSIFICATION,
    MASKED_LM,
    QUESTION_ANSWERING,
    SEQ2SEQ_LM,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
)
from privctl.data.columns import Columns, HeadKind
from privctl.data.images import read_images
from privctl.data.records import Record, read_records
from privctl.data.rows import with_progress
from privctl.data.several import DataPath
from privctl.data.sounds import read_sounds
from privctl.data.texts import iter_texts
from privctl.domain.errors import CommandError
from privctl.domain.progress import Progress, unseen
from privctl.models.adapters import adapter_at, task_type_of
from privctl.models.chat import chat_with
from privctl.models.choices import FloatFormat
from privctl.models.kinds import KINDS, ModelClass
from privctl.models.language import LanguageModel, load_model
from privctl.models.purpose import task_meant, task_named

#: Task name -> the class of network it needs.
TASKS: dict[str, ModelClass] = {str(task): kind for task, kind in KINDS.items()}
#: peft's names for some of the tasks; it has none for the others.
_PEFT_TASKS = {
    "CAUSAL_LM": CAUSAL_LM,
    "SEQ_CLS": TEXT_CLASSIFICATION,
    "TOKEN_CLS": TOKEN_CLASSIFICATION,
    "QUESTION_ANS": QUESTION_ANSWERING,
    "SEQ_2_SEQ_LM": SEQ2SEQ_LM,
}
#: Limits of a group of records that is encoded at once.
_RECORDS, _CHARACTERS = 1024, 1 << 20
#: The kind of annotation that is read with the records.
_ANNOTATED = {TOKEN_CLASSIFICATION: HeadKind.TOKENS, QUESTION_ANSWERING: HeadKind.SPAN}


class AuditedModel(Protocol):
    """A model together with the encoding of its records."""

    @property
    def task(self) -> str:
        """The task's name in ``TASKS``."""

    @property
    def model(self) -> LanguageModel:
        """The model."""

    @property
    def scorer(self) -> Scorer:
        """The scorer of the rows."""

    @property
    def max_length(self) -> int | None:
        """The maximum length of a record in tokens; None if records are not truncated."""

    def rows(self, records: Sequence[Record]) -> Rows:
        """One row per record; the scorer counts 0 scores for a record that cannot be scored. Raises InputError."""

    def describe(self) -> dict[str, Any]:
        """How records become rows, as parameters of a report. Scores are comparable only if these are equal."""


def scoring_of(subject: AuditedModel) -> dict[str, Any]:
    """How the subject is scored, as JSON values: ``describe``, and the precision if it is not float32."""
    dtype = subject.model.dtype
    return {**subject.describe(), **({} if dtype == FloatFormat.FLOAT32 else {"precision": dtype})}


def load_subject(
    path: Path,
    *,
    task: str | None = None,
    device: str | None = None,
    max_length: int | None = None,
    resize: tuple[int, int] | None = None,
    base: Path | None = None,
    base_bits: int | None = None,
    precision: FloatFormat | None = None,
) -> AuditedModel:
    """The model at ``path``, for ``task`` or, by default, the task of its configuration.

    ``base`` is the model that an adapter is loaded on, by default the one that it names; ``base_bits`` 4 loads it in 4
    bits. ``precision`` is as for ``load_model``.

    Raises InputError and CommandError as ``load_model`` does, and CommandError for settings that do not apply to the
    task.
    """
    task = task or task_of(path, base)
    model = load_model(path, device=device, kind=TASKS[task], base=base, base_bits=base_bits, precision=precision)
    return subject_of(task, model, max_length=max_length, resize=resize)


def subject_of(
    task: str, model: LanguageModel, *, max_length: int | None = None, resize: tuple[int, int] | None = None
) -> AuditedModel:
    """The loaded ``model`` for ``task``; images are resized to ``resize`` (height, width).

    Raises CommandError for settings that do not apply to the task.
    """
    images = task == IMAGE_CLASSIFICATION
    if images and max_length is not None:
        raise CommandError(f"--max-length does not apply to the task {task}; remove it")
    if not images and resize is not None:
        raise CommandError(f"--resize does not apply to the task {task}; remove it")
    if task == CAUSAL_LM:
        return CausalSubject(model, max_length)
    if task == MASKED_LM:
        return MaskedSubject(model, max_length)
    if task == SEQ2SEQ_LM:
        return PairSubject(model, max_length)
    if task == TEXT_CLASSIFICATION:
        return TextClassifierSubject(model, max_length)
    if task == TOKEN_CLASSIFICATION:
        return WordSubject(model, max_length)
    if task == QUESTION_ANSWERING:
        return AnswerSubject(model, max_length)
    if task == AUDIO_CLASSIFICATION:
        return SoundSubject(model, max_length)
    return ImageSubject(model, resize)


def task_of(path: Path, base: Path | None = None) -> str:
    """The task of the model at ``path``, by the class that its config.json names; see ``task_meant``.

    For an adapter, the task that it names, or its base's.
    """
    adapter = adapter_at(path, base)
    if adapter is None:
        return str(task_meant(path))
    named = _PEFT_TASKS.get(task_type_of(path) or "")
    return named or str(task_named(adapter.base) or CAUSAL_LM)


def read(
    subject: AuditedModel, path: DataPath, columns: Columns | None = None, progress: Progress = unseen
) -> list[Record]:
    """The records at ``path``, in the form that the subject needs.

    Texts are in any format that ``rows_of`` reads, with ``label`` for a classifier, in pairs for a sequence-to-sequence
    model; images and sounds in one that ``read_images`` and ``read_sounds`` read; ``columns`` names other fields.
    Raises InputError, naming the line, for an invalid record.
    """
    if isinstance(subject, ImageSubject):
        columns = replace(columns or Columns(), problem=subject.scorer.problem)
        images = read_images(path, channels=subject.facts.channels, resize=subject.resize, columns=columns)
        pairs = zip(images.labels, images.pixels, strict=True)
        return [Record(i, "", label, pixels) for i, (label, pixels) in enumerate(pairs, start=1)]
    if isinstance(subject, SoundSubject):
        columns = replace(columns or Columns(), problem=subject.scorer.problem)
        sounds = read_sounds(path, rate=subject.facts.rate, columns=columns)
        waves = zip(sounds.labels, sounds.waves, strict=True)
        return [Record(i, "", label, wave) for i, (label, wave) in enumerate(waves, start=1)]
    return list(with_progress(_texts(subject, path, text_columns(subject, columns)), path, progress))


def _texts(subject: AuditedModel, path: DataPath, columns: Columns) -> Iterator[Record]:
    if subject.task in (CAUSAL_LM, MASKED_LM):
        return read_records(path, columns)
    labelled = isinstance(subject, TextClassifierSubject)
    return (
        Record(r.line, r.text, r.label, start=0 if labelled else r.start)
        for r in iter_texts(path, labelled=labelled, columns=columns)
    )


def encode_records(subject: AuditedModel, records: Sequence[Record], progress: Progress = unseen) -> Rows:
    """As ``subject.rows``, in groups of records that ``progress`` counts."""
    parts: list[Rows] = []
    with progress("tokenizing" if subject.model.tokenizer else "encoding", len(records), "records") as advance:
        for group in _groups(records):
            parts.append(subject.rows(group))
            advance(len(group))
    return Rows(
        rows=[row for part in parts for row in part.rows],
        truncated=np.concatenate([np.zeros(0, dtype=np.bool_), *(part.truncated for part in parts)]),
    )


def _groups(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """The records in groups of at most ``_RECORDS``, each closed once it has ``_CHARACTERS`` characters."""
    begin = size = 0
    for end, record in enumerate(records, start=1):
        size += len(record.text)
        if end - begin == _RECORDS or size >= _CHARACTERS:
            yield records[begin:end]
            begin, size = end, 0
    if begin < len(records):
        yield records[begin:]


def text_columns(subject: AuditedModel, columns: Columns | None) -> Columns:
    """``columns`` as used by a subject that reads texts."""
    columns = with_chat(columns, subject.model)
    if isinstance(subject, TextClassifierSubject):
        return replace(columns, problem=subject.scorer.problem)
    if subject.task in _ANNOTATED:
        return replace(columns, problem=_ANNOTATED[subject.task])
    return replace(columns, pair=True) if subject.task == SEQ2SEQ_LM else columns


def with_chat(columns: Columns | None, model: LanguageModel) -> Columns:
    """``columns`` with the ``model``'s chat template; empty texts are read, so that they are reported as left out."""
    return replace(columns or Columns(), chat=chat_with(lambda: model.tokenizer, model.tokenizer_from), empty=True)
