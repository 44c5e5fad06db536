"""Models that label words or answer questions from a text: scores of word labels and of an answer's start and end.

Records are tokenized as in ``privctl retrain``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.classes import class_scores, label_numbers, number_of
from audits.scores.forward import Batching, batches, enough_memory
from audits.scores.rows import DEFAULT_LENGTH, Rows, pad_rows
from audits.scores.table import FIELDS
from audits.scores.tasks import QUESTION_ANSWERING, TOKEN_CLASSIFICATION
from privctl.data.records import Record
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, silent
from privctl.models.annotated import NO_LABEL, AnnotatedRow, question_rows, require_offsets, word_rows
from privctl.models.context import context_of
from privctl.models.language import LanguageModel, pad_of
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors
from privctl.models.tasks.answers import question_mask, reads_types, separator_of, span_logits
from privctl.models.tasks.classification import text_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WordScorer:
    """Rows are [2, tokens]: ids, and the number of a word's label at its first token, otherwise ``NO_LABEL``."""

    causal = False

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.pad = pad_of(model.network, model.tokenizer)

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The number of words with a label."""
        return np.array([int((row[1] != NO_LABEL).sum()) for row in rows], dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, batching: Batching | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, total] of every word's label."""
        counts = self.counts(rows)
        begins = np.cumsum(counts) - counts
        values = np.empty((len(FIELDS), int(counts.sum())), dtype=np.float32)
        for batch, inputs in _inputs(self.model, self.pad, [row[0] for row in rows], batching):
            with network_errors(self.model.path, self.model.network):
                logits = text_logits(self.model.network, inputs)
            for batch_row, i in enumerate(batch):
                words = torch.from_numpy(np.flatnonzero(rows[i][1] != NO_LABEL)).to(logits.device)
                labels = torch.from_numpy(rows[i][1]).to(logits.device)[words]
                scores = class_scores(logits[batch_row][words], labels).cpu().numpy()
                values[:, begins[i] : begins[i] + counts[i]] = scores
                advance(int(counts[i]))
        return values


class AnswerScorer:
    """Rows are the answer's first and last token, then the ids and each token's segment, of equal length."""

    causal = False

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.pad = pad_of(model.network, model.tokenizer)
        self.typed = reads_types(model.network, model.tokenizer)
        self.separator = separator_of(model.network, model.tokenizer)

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """Always 2: the answer's start and end."""
        return np.full(len(rows), 2, dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, batching: Batching | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, 2 rows] of the answers' first and last tokens among all tokens of their row."""
        values = np.empty((len(FIELDS), 2 * len(rows)), dtype=np.float32)
        ids, types = zip(*(np.split(row[2:], 2) for row in rows), strict=True) if rows else ((), ())
        for batch, inputs in _inputs(self.model, self.pad, ids, batching):
            if self.typed:
                padded, _ = pad_rows([types[i] for i in batch], 0)
                inputs["token_type_ids"] = torch.from_numpy(padded).to(self.model.device)
            if self.separator is not None:
                inputs["global_attention_mask"] = question_mask(inputs, self.separator)
            with network_errors(self.model.path, self.model.network):
                logits = span_logits(self.model.network, {**inputs, "padded": inputs["attention_mask"] == 0})
            for batch_row, i in enumerate(batch):
                ends = torch.from_numpy(rows[i][:2]).to(logits.device)
                scores = class_scores(logits[batch_row, : len(ids[i])].T.contiguous(), ends)
                values[:, 2 * i : 2 * i + 2] = scores.cpu().numpy()
                advance(2)
        return values


def _inputs(
    model: LanguageModel, pad: int, rows: Sequence[NDArray[np.int64]], batching: Batching | None
) -> Iterator[tuple[Sequence[int], dict[str, torch.Tensor]]]:
    """Batches of row indices of similar lengths, with the network's inputs for them."""
    tokens = (batching or Batching.of(model)).tokens
    with quiet_transformers(), enough_memory(model):
        for batch in batches(np.array([len(row) for row in rows], dtype=np.int64), tokens):
            ids, real = (torch.from_numpy(array).to(model.device) for array in pad_rows([rows[i] for i in batch], pad))
            yield batch, {"input_ids": ids, "attention_mask": real}


class WordSubject:
    """Records are words with labels. Raises CommandError for a ``max_length`` that does not fit the model."""

    task = TOKEN_CLASSIFICATION

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        self.model = model
        self.scorer = WordScorer(model)
        self.max_length: int | None = _limit(model, max_length)
        self._labels = label_numbers(model)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""

        def number(name: str, record: Record) -> int:
            return number_of(self._labels, name, record.line, self.model)

        word_rows_made = list(word_rows(self.model.tokenizer, records, number, self.max_length))
        return _rows(
            self.model, word_rows_made, [np.stack([row.ids, row.numbers]).astype(np.int64) for row in word_rows_made]
        )

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {
            "task": self.task,
            "max_length": self.max_length,
            "scored": "the label of every word, at its first token",
            "truncation": "keeps the first max_length tokens, special ones counted",
        }


class AnswerSubject:
    """Records are questions with contexts and answers. Raises CommandError for a ``max_length`` that does not fit."""

    task = QUESTION_ANSWERING

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        self.model = model
        self.scorer = AnswerScorer(model)
        self.max_length: int | None = _limit(model, max_length)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""
        question_rows_made = list(question_rows(self.model.tokenizer, records, self.max_length))
        arrays = [np.concatenate([row.answer, row.ids, row.numbers]).astype(np.int64) for row in question_rows_made]
        return _rows(self.model, question_rows_made, arrays)

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {
            "task": self.task,
            "max_length": self.max_length,
            "scored": "the first and the last token of the first answer; without one, the classification token",
            "truncation": "cuts the context to max_length tokens with the question, special ones counted",
        }


def _limit(model: LanguageModel, max_length: int | None) -> int:
    require_offsets(model.tokenizer)
    context = context_of(model.network, model.tokenizer)
    if max_length is not None and max_length < 4:
        raise CommandError(f"--max-length is {max_length}; it must be at least 4 tokens")
    if max_length is not None and context is not None and max_length > context:
        raise CommandError(f"--max-length is {max_length}, but {model.path} sees at most {context} tokens; give less")
    return max_length or min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)


def _rows(model: LanguageModel, made: Sequence[AnnotatedRow], arrays: list[NDArray[np.int64]]) -> Rows:
    highest = max((int(row.ids.max(initial=0)) for row in made), default=0)
    if highest >= model.vocabulary:
        raise InputError(
            f"{model.folder} has a tokenizer that gives id {highest}, but the model knows {model.vocabulary} tokens; "
            "give the tokenizer the model was trained with"
        )
    return Rows(rows=arrays, truncated=np.array([row.length > len(row.ids) for row in made], dtype=np.bool_))
