"""Encoding of labelled words and of questions about a text as token sequences.

Words are joined by spaces and tokenized, as in transformers' pipeline; the first token of each word has its label, as
in transformers' examples. A question and its context form one sequence. If there is no answer, or it was cut off, the
answer is the classification token.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from privctl.data.annotated import answers_of
from privctl.data.columns import split_pair
from privctl.data.labels import LabelSet
from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import LongTextPolicy
from privctl.models.corpora import IN_MEMORY, Corpus, CorpusStorage, Encoded, EncodedRecord
from privctl.models.encoding import RecordsWithoutTokens, TextFacts, TextOptions, length_limit
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.units import content_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Records per call of the tokenizer.
_CHUNK = 256
#: The label number of tokens without a label.
NO_LABEL = -1


class StatedRecord(Protocol):
    """A record in the format of ``annotated``, from training or an audit."""

    @property
    def text(self) -> str:
        """The words, or the question and its context."""
        ...

    @property
    def start(self) -> int:
        """The character at which the context begins."""
        ...

    @property
    def label(self) -> str | None:
        """The labels or answers, as JSON."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedRow:
    """The tokens of one record; before truncation there were ``length``.

    For words, ``numbers`` (tokens,) has the number of the label at the first token of each word, else ``NO_LABEL``. For
    a question, ``numbers`` has the segment of each token, ``context`` (tokens,) is True at the tokens of the context,
    ``begins`` and ``ends`` are the character offsets of these, ``answer`` is the first and last token of the first
    answer, and ``none`` is the token that stands for no answer.
    """

    ids: NDArray[np.int32]
    numbers: NDArray[np.int32]
    length: int
    context: NDArray[np.bool_] | None = None
    begins: Sequence[int] = ()
    ends: Sequence[int] = ()
    answer: tuple[int, int] = (0, 0)
    none: int = 0

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Flags (tokens,) of the first token of each labelled word."""
        flags: NDArray[np.bool_] = self.numbers != NO_LABEL
        return flags


def encode_words(
    records: Iterable[TextRecord],
    facts: TextFacts,
    options: TextOptions,
    labels: LabelSet,
    keep: CorpusStorage = IN_MEMORY,
) -> Corpus:
    """Examples for token classification; the counted tokens are those that begin a word.

    Raises InputError for a record that is too long (unless ``options.long`` allows it) or has a label not in
    ``labels``, or for all that have no token to label; CommandError for ``LongTextPolicy.SPLIT``.
    """
    limit = _limit(facts, options)

    def encoded() -> Iterator[EncodedRecord]:
        def number(name: str, record: TextRecord) -> int:
            return labels.number(name, record.where)

        without = RecordsWithoutTokens("to label")
        for index, (record, row) in enumerate(
            _checked(records, facts, options, partial(word_rows, number=number, limit=limit))
        ):
            if row.labelled.any():
                example = _example(row, row.labelled, index)
                yield EncodedRecord([example], record.unit, shortened=row.length > len(row.ids))
            else:
                without.add(record, len(row.ids))
        without.refuse()

    return keep.corpus(encoded())


def encode_questions(
    records: Iterable[TextRecord], facts: TextFacts, options: TextOptions, keep: CorpusStorage = IN_MEMORY
) -> Corpus:
    """Examples for extractive question answering; the counted tokens are the context's.

    Raises as ``encode_words`` does, and InputError for a question that leaves no room for its context.
    """
    limit = _limit(facts, options)

    def encoded() -> Iterator[EncodedRecord]:
        for index, (record, row) in enumerate(_checked(records, facts, options, partial(question_rows, limit=limit))):
            assert row.context is not None
            kept = [split_pair(record.text, record.start)[1], row.begins, row.ends, answers_of(record.label), row.none]
            yield EncodedRecord(
                [_example(row, row.context, index)],
                record.unit,
                share=1,
                targets=row.answer,
                shortened=row.length > len(row.ids),
                kept=json.dumps(kept).encode(),
            )

    return keep.corpus(encoded())


#: Rows of a few records.
_Rows = Callable[[Any, Sequence[Any]], Iterator[AnnotatedRow]]


def word_rows(
    tokenizer: Any, records: Sequence[StatedRecord], number: Callable[[str, Any], int], limit: int | None
) -> Iterator[AnnotatedRow]:
    """The row of each record of words, cut to ``limit`` tokens; ``number`` maps a label to its number."""
    settings = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    with quiet_transformers():
        whole = tokenizer([record.text for record in records], truncation=False, **settings)
    for i, record in enumerate(records):
        row = {name: values[i] for name, values in whole.items()}
        length = len(row["input_ids"])
        if limit is not None and length > limit:
            with quiet_transformers():
                row = dict(tokenizer(record.text, truncation=True, max_length=limit, **settings))
        names = [number(name, record) for name in json.loads(record.label or "[]")]
        yield AnnotatedRow(
            ids=np.asarray(row["input_ids"], np.int32), numbers=_first_tokens(record.text, row, names), length=length
        )


def _first_tokens(text: str, row: dict[str, Any], labels: Sequence[int]) -> NDArray[np.int32]:
    """The label (tokens,) of each token that begins a word, else ``NO_LABEL``."""
    numbers = np.full(len(row["input_ids"]), NO_LABEL, np.int32)
    begins = [0, *accumulate(len(word) + 1 for word in text.split(" "))][:-1]
    last = -1
    for i, ((begin, end), special) in enumerate(zip(row["offset_mapping"], row["special_tokens_mask"], strict=True)):
        while begin < end and text[begin] == " ":
            begin += 1  # some tokenizers include the preceding space in a word's offsets
        if special or begin >= end:
            continue
        word = bisect_right(begins, begin) - 1
        if word != last:
            numbers[i] = labels[word]
        last = word
    return numbers


def question_rows(tokenizer: Any, records: Sequence[StatedRecord], limit: int | None) -> Iterator[AnnotatedRow]:
    """The row of each question with its context, whose end is cut so that there are at most ``limit`` tokens."""
    first = getattr(tokenizer, "padding_side", "right") == "right"  # as transformers' examples order the two
    settings = {"return_offsets_mapping": True, "return_token_type_ids": True}
    pairs = [split_pair(record.text, record.start) for record in records]
    ordered = [pair if first else (pair[1], pair[0]) for pair in pairs]
    with quiet_transformers():
        whole = tokenizer([a for a, _ in ordered], [b for _, b in ordered], truncation=False, **settings)
    for i, record in enumerate(records):
        encoding, place, length = whole, i, len(whole["input_ids"][i])
        if limit is not None and length > limit:
            beside = sum(sequence != int(first) for sequence in whole.sequence_ids(i))
            if beside >= limit:  # no token of the context is left
                yield _question_row(tokenizer, tokenizer([pairs[i][0]], **settings), 0, 1, length, ())
                continue
            cut = "only_second" if first else "only_first"
            with quiet_transformers():
                encoding = tokenizer(*([text] for text in ordered[i]), truncation=cut, max_length=limit, **settings)
            place = 0
        yield _question_row(tokenizer, encoding, place, int(first), length, answers_of(record.label))


def _question_row(
    tokenizer: Any, encoding: Any, row_index: int, side: int, length: int, answers: Sequence[tuple[int, str]]
) -> AnnotatedRow:
    ids = list(encoding["input_ids"][row_index])
    context = np.array([sequence == side for sequence in encoding.sequence_ids(row_index)], np.bool_)
    none = _no_answer(tokenizer, ids)
    spans = [span for span, inside in zip(encoding["offset_mapping"][row_index], context, strict=True) if inside]
    return AnnotatedRow(
        ids=np.asarray(ids, np.int32),
        numbers=np.asarray(encoding["token_type_ids"][row_index], np.int32),
        length=length,
        context=context,
        begins=[begin for begin, _ in spans],
        ends=[end for _, end in spans],
        answer=_answer(answers, np.flatnonzero(context), spans) or (none, none),
        none=none,
    )


def _answer(
    answers: Sequence[tuple[int, str]], positions: NDArray[np.intp], spans: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """The first and last token of the first answer; None if the context's tokens do not contain it."""
    if not answers:
        return None
    begin, end = answers[0][0], answers[0][0] + len(answers[0][1])
    inside = [i for i, span in enumerate(spans) if span[0] < end and span[1] > begin and span[1] > span[0]]
    if not inside or spans[inside[-1]][1] < end:
        return None  # the answer or its end was cut off
    return int(positions[inside[0]]), int(positions[inside[-1]])


def _no_answer(tokenizer: Any, ids: Sequence[int]) -> int:
    """The position of the token that stands for no answer: the classification token, else the start token, else 0."""
    known = (tokenizer.cls_token_id, tokenizer.bos_token_id)
    return next((ids.index(token) for token in known if token is not None and token in ids), 0)


def _limit(facts: TextFacts, options: TextOptions) -> int | None:
    require_offsets(facts.tokenizer)
    if options.long is LongTextPolicy.SPLIT:
        raise CommandError("--long split would part a record from what is to be predicted of it; choose truncate")
    return length_limit(facts, options)


def require_offsets(tokenizer: Any) -> None:
    """Raise CommandError for a tokenizer that does not give the character offsets of tokens."""
    if not tokenizer.is_fast:
        raise CommandError(
            "the model's tokenizer gives no offsets of its tokens, by which labels and answers are found; give a model "
            "with a tokenizer.json"
        )


def _checked(
    records: Iterable[TextRecord], facts: TextFacts, options: TextOptions, rows: _Rows
) -> Iterator[tuple[TextRecord, AnnotatedRow]]:
    """Each record with its row; raises InputError for token ids, lengths or questions out of bounds."""
    for chunk in _chunks(records):
        for record, row in zip(chunk, rows(facts.tokenizer, chunk), strict=True):
            if len(row.ids) and not 0 <= int(row.ids.max()) < facts.vocabulary:
                raise InputError(
                    f"{record.where} has the token id {row.ids.max()}, and the model knows ids below "
                    f"{facts.vocabulary}; use the model's own tokenizer"
                )
            if row.length > len(row.ids) and options.long is LongTextPolicy.REFUSE:
                raise InputError(
                    f"{record.where} has {row.length} tokens where the limit is {len(row.ids)}; give --long truncate, "
                    "or shorten it"
                )
            if row.context is not None and not row.context.any():
                raise InputError(
                    f"{record.where} has a question so long that no token of its context is left; shorten it, or give "
                    "a greater --max-length"
                )
            yield record, row


def _chunks(records: Iterable[TextRecord]) -> Iterator[list[TextRecord]]:
    chunk: list[TextRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _example(row: AnnotatedRow, counted: NDArray[np.bool_], record: int) -> Encoded:
    key = content_key(row.ids.tobytes(), counted.tobytes(), row.numbers.tobytes())
    return Encoded(ids=row.ids, counted=counted, record=record, key=key, numbers=row.numbers)
