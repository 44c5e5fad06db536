"""Encoding of texts as token sequences: special tokens, the limit of the context, which tokens count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privctl.data.columns import HeadKind
from privctl.data.labels import LabelSet
from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import LongTextPolicy
from privctl.models.corpora import IN_MEMORY, Corpus, CorpusStorage, Encoded, EncodedRecord
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.units import content_key

#: Most records per call of the tokenizer, and the number of characters at which a call has enough.
_CHUNK, _CHARACTERS = 1024, 1 << 18
#: An error names at most this many of the records that cannot be used.
_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """What encoding needs to know about a model.

    ``context`` is the most tokens it reads (None if no limit is known), token ids are below ``vocabulary``, ``pad`` is
    the id used for padding. ``once``, if given, is an id that every text must contain exactly once.
    """

    tokenizer: Any
    context: int | None
    vocabulary: int
    pad: int
    once: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How texts are encoded as examples.

    ``max_length`` (tokens) may lower the limit of the context. For causal models only: ``end`` appends the end-of-text
    token if the tokenizer has one, and ``response_only`` counts only the tokens of a response.
    """

    long: LongTextPolicy = LongTextPolicy.REFUSE
    max_length: int | None = None
    end: bool = True
    response_only: bool = False


def with_end(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """``ids`` ending in the tokenizer's end-of-text token, if it has one, as in training a causal model."""
    eos = tokenizer.eos_token_id
    return list(ids) if eos is None or (len(ids) and ids[-1] == eos) else [*ids, eos]


def length_limit(facts: TextFacts, options: TextOptions) -> int | None:
    """The most tokens of an example. Raises CommandError for a ``max_length`` below 4 or beyond the context."""
    if options.max_length is None:
        return facts.context
    if options.max_length < 4:
        raise CommandError(f"--max-length is {options.max_length}; it must be at least 4 tokens")
    if facts.context is not None and options.max_length > facts.context:
        raise CommandError(f"--max-length is {options.max_length}, but the model reads at most {facts.context} tokens")
    return options.max_length


def encode_causal(
    records: Iterable[TextRecord], facts: TextFacts, options: TextOptions, keep: CorpusStorage = IN_MEMORY
) -> Corpus:
    """Examples for a causal model, tokenized a few records at a time and stored by ``keep``.

    Every token but the first counts. Pieces of a split text overlap by one token, so that each token still counts once.
    Raises InputError for a text that is too long (unless ``options.long`` allows it), or for all that are too short.
    """
    _check_tokenizer(facts, options.response_only)
    return keep.corpus(_causal(records, facts, options, length_limit(facts, options)))


def encode_masked(
    records: Iterable[TextRecord], facts: TextFacts, options: TextOptions, keep: CorpusStorage = IN_MEMORY
) -> Corpus:
    """Examples for a masked model; all but special tokens count. Raises as ``encode_causal`` does."""
    _check_tokenizer(facts, options.long is LongTextPolicy.SPLIT)
    return keep.corpus(_undivided(records, facts, options, length_limit(facts, options), "to hide"))


def encode_classified(
    records: Iterable[TextRecord],
    facts: TextFacts,
    options: TextOptions,
    keep: CorpusStorage = IN_MEMORY,
    labels: LabelSet | None = None,
    problem: HeadKind = HeadKind.ONE,
) -> Corpus:
    """Examples for a classifier, with the number of each label in ``labels``, or with targets (see ``head_targets``).

    Raises as ``encode_causal`` does, InputError for a label that is not among them, and CommandError for
    ``LongTextPolicy.SPLIT``.
    """
    if options.long is LongTextPolicy.SPLIT:
        raise CommandError("--long split would give pieces of a text its label; choose truncate to classify long texts")
    return keep.corpus(
        _undivided(
            records, facts, options, length_limit(facts, options), "to classify", 1, _LabelReader(problem, labels)
        )
    )


@dataclass(frozen=True, slots=True)
class _LabelReader:
    """Reads a record's label, as (its number in ``labels``, ()) or (None, targets), depending on the ``problem``."""

    problem: HeadKind
    labels: LabelSet | None

    def __call__(self, record: TextRecord) -> tuple[int | None, Sequence[float]]:
        if self.problem is not HeadKind.NUMBER and self.labels is None:
            return None, ()
        if self.problem is HeadKind.ONE and self.labels is not None:
            return self.labels.number(record.label or "", record.where), ()
        return None, head_targets(self.problem, self.labels, record.label or "", record.where)


def head_targets(problem: HeadKind, labels: LabelSet | None, stated: str, where: str) -> list[float]:
    """A head's targets for a record whose label is ``stated``: 1 or 0 for each label, or the number itself.

    Raises InputError, naming ``where``, for a label that is not among ``labels``.
    """
    if problem is HeadKind.NUMBER or labels is None:
        return [float(stated)]
    numbers = {labels.number(name, where) for name in json.loads(stated)}
    return [float(number in numbers) for number in range(len(labels))]


def _causal(
    records: Iterable[TextRecord], facts: TextFacts, options: TextOptions, limit: int | None
) -> Iterator[EncodedRecord]:
    without = RecordsWithoutTokens("to predict")
    for index, record, encoding in _tokenise(records, facts, return_offsets_mapping=options.response_only):
        ids, counted = list(encoding["input_ids"]), [True] * len(encoding["input_ids"])
        if options.response_only:
            counted = [end > record.start for _, end in encoding["offset_mapping"]]
            if ids and ids[-1] == facts.tokenizer.eos_token_id:
                counted[-1] = True  # an end-of-text token added by a template has no offsets in the text
        if options.end:
            ids = with_end(ids, facts.tokenizer)
            counted += [True] * (len(ids) - len(counted))
        shortened = False
        if limit is not None and len(ids) > limit:
            _require_allowed(options.long, record, len(ids), limit)
            shortened = options.long is LongTextPolicy.TRUNCATE
        pieces = _pieces(len(ids), limit, options.long)
        encoded = [_example(ids[piece], counted[piece], index) for piece in pieces]
        for example in encoded:
            example.counted[:1] = False  # the first token of a piece has no preceding token to predict it from
        if useful := _with_counted_tokens(encoded, record, without):
            yield EncodedRecord(useful, record.unit, shortened=shortened)
    without.refuse()


def _undivided(
    records: Iterable[TextRecord],
    facts: TextFacts,
    options: TextOptions,
    limit: int | None,
    purpose: str,
    share: int | None = None,
    read: _LabelReader | None = None,
) -> Iterator[EncodedRecord]:
    cut = limit is not None and options.long is not LongTextPolicy.REFUSE
    without = RecordsWithoutTokens(purpose)
    for index, record, encoding in _tokenise(records, facts, return_special_tokens_mask=True):
        label, targets = (None, ()) if read is None else read(record)
        pieces = [(encoding["input_ids"], encoding["special_tokens_mask"])]
        shortened = False
        if limit is not None and len(encoding["input_ids"]) > limit:
            _require_allowed(options.long, record, len(encoding["input_ids"]), limit)
        if cut and len(encoding["input_ids"]) > (limit or 0):
            shortened = options.long is LongTextPolicy.TRUNCATE
            pieces = (
                [_truncated(record.text, facts, limit or 0)]
                if shortened
                else list(_split(record, *pieces[0], limit or 0))
            )
        encoded = [_example(ids, [not special for special in specials], index) for ids, specials in pieces]
        if facts.once is not None and any((example.ids == facts.once).sum() != 1 for example in encoded):
            raise InputError(
                f"{record.where} does not hold the end-of-text token {facts.tokenizer.eos_token!r} exactly once, where "
                "an encoder-decoder's classifier reads its answer; remove it from the text, or give the model's own "
                "tokenizer"
            )
        if useful := _with_counted_tokens(encoded, record, without):
            yield EncodedRecord(useful, record.unit, share, label, targets, shortened)
    without.refuse()


def _truncated(text: str, facts: TextFacts, limit: int) -> tuple[list[int], list[int]]:
    """A text truncated to ``limit`` tokens, special tokens included, as (ids, special tokens mask)."""
    with quiet_transformers():
        encoding = facts.tokenizer(text, truncation=True, max_length=limit, return_special_tokens_mask=True)
    return encoding["input_ids"], encoding["special_tokens_mask"]


def _split(
    record: TextRecord, ids: Sequence[int], specials: Sequence[int], limit: int
) -> Iterator[tuple[list[int], list[int]]]:
    """A text's pieces, each with the special tokens that surround the whole text, as (ids, special tokens mask).

    The tokenizer's own overflow is not used: in tokenizers 0.23.1 and 0.23.2 it ends after the second piece.
    """
    first = next((i for i, special in enumerate(specials) if not special), len(ids))
    last = len(ids) - next((i for i, special in enumerate(reversed(specials)) if not special), 0)
    before, after = list(ids[:first]), list(ids[last:])
    room = limit - len(before) - len(after)
    if room < 1:
        raise InputError(
            f"{record.where} has {len(before) + len(after)} special tokens, and the limit of {limit} tokens leaves no "
            "room for others; choose truncate"
        )
    for start in range(first, last, room):
        end = min(start + room, last)
        yield [*before, *ids[start:end], *after], [1] * len(before) + list(specials[start:end]) + [1] * len(after)


def _tokenise(
    records: Iterable[TextRecord], facts: TextFacts, **settings: Any
) -> Iterator[tuple[int, TextRecord, dict[str, Any]]]:
    """(index, record, encoding without truncation) of each record."""
    index = 0
    for chunk in _chunks(records):
        with quiet_transformers():
            encodings = facts.tokenizer([record.text for record in chunk], truncation=False, **settings)
        for i, record in enumerate(chunk):
            row = {name: values[i] for name, values in encodings.items()}
            if row["input_ids"] and not 0 <= max(row["input_ids"]) < facts.vocabulary:
                raise InputError(
                    f"{record.where} has the token id {max(row['input_ids'])}, and the model knows ids below "
                    f"{facts.vocabulary}; use the model's own tokenizer"
                )
            yield index, record, row
            index += 1


def _chunks(records: Iterable[TextRecord]) -> Iterator[list[TextRecord]]:
    """The records in groups of at most ``_CHUNK``, each closed once it has ``_CHARACTERS`` characters."""
    chunk: list[TextRecord] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.text)
        if len(chunk) == _CHUNK or size >= _CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _check_tokenizer(facts: TextFacts, required: bool) -> None:
    if required and not facts.tokenizer.is_fast:
        raise CommandError(
            "the model's tokenizer gives no offsets of its tokens, which --response-only and --long split need; give a "
            "model with a tokenizer.json"
        )


def _require_allowed(long: LongTextPolicy, record: TextRecord, length: int, limit: int) -> None:
    if long is LongTextPolicy.REFUSE:
        raise InputError(
            f"{record.where} has {length} tokens where the limit is {limit}; give --long truncate or --long split, or "
            "shorten it"
        )


def _pieces(length: int, limit: int | None, long: LongTextPolicy) -> list[slice]:
    if limit is None or length <= limit:
        return [slice(0, length)]
    if long is LongTextPolicy.TRUNCATE:
        return [slice(0, limit)]
    return [slice(start, start + limit) for start in range(0, length - 1, limit - 1)]


def _example(ids: Sequence[int], counted: Sequence[bool], record: int) -> Encoded:
    array = np.asarray(ids, np.int32)
    flags = np.asarray(counted, np.bool_)
    return Encoded(ids=array, counted=flags, record=record, key=content_key(array.tobytes(), flags.tobytes()))


def _with_counted_tokens(pieces: Sequence[Encoded], record: TextRecord, without: RecordsWithoutTokens) -> list[Encoded]:
    """The pieces with a counted token; if there are none, the record is added to those ``without``."""
    useful = [example for example in pieces if example.counted.any()]
    if not useful:
        without.add(record, sum(len(example.ids) for example in pieces))
    return useful


class RecordsWithoutTokens:
    """The records of a data set that have no token for a ``purpose``, all of which one error names.

    ``of_many`` is the purpose where there are several, if that is put in other words.
    """

    def __init__(self, purpose: str, of_many: str = "") -> None:
        self._purpose, self._of_many = purpose, of_many or purpose
        self._first: list[TextRecord] = []
        self._count = self._length = 0

    def add(self, record: TextRecord, length: int) -> None:
        """Add a record with ``length`` tokens in all."""
        self._count, self._length = self._count + 1, length
        if self._count <= _NAMED:
            self._first.append(record)

    def refuse(self) -> None:
        """Raise InputError if there are any."""
        if self._count == 1:
            raise InputError(
                f"{self._first[0].where} has no token {self._purpose} ({self._length} tokens in all); lengthen or "
                "remove it"
            )
        if self._count:
            *places, last = self._places()
            more = f", {last} and {self._count - _NAMED} more" if self._count > _NAMED else f" and {last}"
            raise InputError(f"{', '.join(places)}{more} have no token {self._of_many}; lengthen or remove them")

    def _places(self) -> Iterator[str]:
        """Each record's place; where it is in the same file as the one before, its line alone."""
        before = None
        for record in self._first:
            yield record.where if record.stretch != before else str(record.line - record.stretch.before)
            before = record.stretch
