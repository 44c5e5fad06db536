"""Records as token windows of a prefix and a suffix, and how often their texts occur in the training data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from audits.extraction.copies import CopyCounter
from audits.extraction.decoding import Decoder, TextDecoder
from audits.extraction.greedy import text_logits
from audits.scores.forward import Measure, measure_rows
from audits.scores.rows import begins_with_bos, encode
from audits.scores.scorer import key
from privctl.data.columns import Columns
from privctl.data.records import Record, read_records
from privctl.data.rows import with_progress
from privctl.data.several import DataPath
from privctl.data.texts import iter_texts
from privctl.domain.errors import CommandError
from privctl.domain.progress import Advance, Progress, silent, unseen
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

#: The number of records tokenized at once while a file is streamed.
_RECORDS = 1024


class SkippedReason(IntEnum):
    """Why a record has no verdict; the numbers are part of the file format."""

    TOO_SHORT = 1
    REPEATED = 2
    NOT_FINITE = 3
    IN_TRAINING = 4

    @property
    def reason(self) -> str:
        """The wording in reports."""
        return {
            SkippedReason.TOO_SHORT: "of fewer tokens than a prefix and a suffix",
            SkippedReason.REPEATED: "beginning with the same prefix and suffix as an earlier one of their file",
            SkippedReason.NOT_FINITE: "given NaN or infinite scores by the model",
            SkippedReason.IN_TRAINING: "held out, but beginning with the same prefix and suffix as a training record",
        }[self]


class RecordCut(NamedTuple):
    """A record's ``window``, None if the record is too short, and the tokens that may contain copies of suffixes."""

    window: NDArray[np.int64] | None
    document: NDArray[np.int64]


class WindowShape(Protocol):
    """How a record becomes a window: a prompt that ends with the record's ``prefix``, followed by its ``suffix``."""

    @property
    def prefix(self) -> int:
        """The number of tokens given of the text to be reproduced."""

    @property
    def suffix(self) -> int:
        """The number of tokens to be reproduced."""

    @property
    def least(self) -> int:
        """The minimum length, in tokens, of the text to be reproduced."""

    def is_short(self, row: NDArray[np.int64]) -> bool:
        """Whether the window's prefix is shorter than ``prefix``."""

    def cut(self, model: LanguageModel, records: Sequence[Record]) -> list[RecordCut]:
        """The window of each record. Raises InputError for ids that the model has no embedding for."""

    def decoder(self, model: LanguageModel) -> Decoder:
        """The decoder that continues the prompts of windows."""

    def logits(self, model: LanguageModel, row: NDArray[np.int64], suffix: int) -> torch.Tensor:
        """The logits [suffix, vocabulary] for a window's last tokens, each given the true tokens before it."""

    def measure(
        self, model: LanguageModel, rows: Sequence[NDArray[np.int64]], measure: Measure, fields: int, advance: Advance
    ) -> NDArray[np.float32]:
        """The values of ``measure`` [fields, rows, suffix] for windows' last tokens, each given those before it."""

    def describe(self) -> dict[str, Any]:
        """The parameters of the windows for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextShape:
    """Windows of texts: the first ``prefix`` + ``suffix`` tokens of a record, BOS not counted.

    A shorter record with at least ``least_prefix`` + ``suffix`` tokens is used whole, with a shorter prefix.
    """

    prefix: int
    suffix: int
    least_prefix: int
    bos: bool

    @property
    def least(self) -> int:
        """The minimum length of a record in tokens."""
        return self.least_prefix + self.suffix

    def cut(self, model: LanguageModel, records: Sequence[Record]) -> list[RecordCut]:
        """See ``WindowShape``."""
        rows = encode(model, [record.text for record in records])
        return [RecordCut(self.window(row), row) for row in rows]

    def is_short(self, row: NDArray[np.int64]) -> bool:
        """See ``WindowShape``."""
        return len(row) < self.bos + self.prefix + self.suffix

    def window(self, row: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The window of a record's ids; None if the record is too short."""
        return None if len(row) < self.bos + self.least else row[: self.bos + self.prefix + self.suffix]

    def decoder(self, model: LanguageModel) -> Decoder:
        """See ``WindowShape``."""
        return TextDecoder.of(model)

    def logits(self, model: LanguageModel, row: NDArray[np.int64], suffix: int) -> torch.Tensor:
        """See ``WindowShape``."""
        return text_logits(model, row, suffix)

    def measure(
        self, model: LanguageModel, rows: Sequence[NDArray[np.int64]], measure: Measure, fields: int, advance: Advance
    ) -> NDArray[np.float32]:
        """See ``WindowShape``."""
        values, _ = measure_rows(model, rows, measure, fields, last=self.suffix, advance=advance)
        return values.reshape(fields, len(rows), self.suffix)

    def describe(self) -> dict[str, Any]:
        """See ``WindowShape``."""
        return {
            "least_prefix": self.least_prefix,
            "bos": "prepended, not counted" if self.bos else "none",
            "texts": "the first tokens of each record, every distinct window once",
        }


#: The default number of tokens of a prefix and of a suffix.
USUAL_TOKENS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSample:
    """The distinct windows of one file, in its order; ``usable`` counts the distinct windows among its ``records``.

    ``line`` [windows] is the line of each record; ``repeated`` [windows] marks windows that several records begin with;
    ``omitted`` lists the lines of records without a window, and why. ``longest`` is the length of the longest record in
    tokens, with BOS.
    """

    path: DataPath
    rows: tuple[NDArray[np.int64], ...]
    line: NDArray[np.int64]
    repeated: NDArray[np.bool_]
    omitted: tuple[tuple[int, SkippedReason], ...]
    records: int
    usable: int
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledWindows:
    """A sample, and how often its windows occur in the complete files.

    ``copies`` [windows] counts the training records that contain each suffix, ``shared`` [windows] marks windows that a
    record of the other file also begins with, and ``compared`` [windows] those that may be compared with the other
    file's. If the complete files share any windows (``in_both`` of them), equal records were assigned to sides one by
    one, and then no repeated window may be compared (``audits.membership.records.left_out``).
    """

    sample: WindowSample
    copies: NDArray[np.int64]
    shared: NDArray[np.bool_]
    compared: NDArray[np.bool_]
    in_both: int = 0


def lengths(room: int | None, prefix: int | None, suffix: int | None) -> tuple[int, int]:
    """The lengths of prefix and suffix; a length of None becomes 50 or what is left of ``room`` for both."""

    def left(most: int | None) -> int:
        return USUAL_TOKENS if most is None else max(1, min(USUAL_TOKENS, most))

    if prefix is None and suffix is None:
        half = left(None if room is None else room // 2)
        return half, half
    if prefix is None:
        assert suffix is not None
        return left(None if room is None else room - suffix), suffix
    return prefix, left(None if room is None else room - prefix) if suffix is None else suffix


def text_shape(model: LanguageModel, prefix: int, suffix: int, least_prefix: int | None) -> TextShape:
    """The shape of windows of texts. Raises CommandError if they would be empty or do not fit into the model."""
    least = prefix if least_prefix is None else least_prefix
    for flag, value in (("--prefix-tokens", prefix), ("--suffix-tokens", suffix), ("--least-prefix", least)):
        if value < 1:
            raise CommandError(f"{flag} is {value}; it must be at least 1")
    if least > prefix:
        raise CommandError(f"--least-prefix is {least}, more than --prefix-tokens {prefix}; give at most that")
    bos = begins_with_bos(model)
    context = model.context
    if context is not None and bos + prefix + suffix > context:
        raise CommandError(
            f"--prefix-tokens {prefix} and --suffix-tokens {suffix} are {bos + prefix + suffix} tokens"
            f"{' with BOS' if bos else ''}, but {model.path} sees at most {context}; give less"
        )
    return TextShape(prefix=prefix, suffix=suffix, least_prefix=least, bos=bos)


def sample(
    model: LanguageModel,
    shape: WindowShape,
    path: DataPath,
    *,
    limit: int | None,
    seed: int,
    columns: Columns | None = None,
    progress: Progress = unseen,
) -> WindowSample:
    """At most ``limit`` windows of a file, drawn by numpy's PCG64 under ``seed``; all without a limit.

    A uniform sample of the file's distinct windows (reservoir sampling, Vitter 1985). Raises CommandError for a
    ``limit`` below 1.
    """
    if limit is not None and limit < 1:
        raise CommandError(f"--records is {limit}; it must be at least 1, the number of records to look at")
    random = np.random.default_rng(seed)
    drawn: list[tuple[int, NDArray[np.int64]]] = []
    omitted: list[tuple[int, SkippedReason]] = []
    distinct: set[bytes] = set()
    repeated: set[bytes] = set()
    total = longest = 0
    for records in _batches(with_progress(_records(path, columns), path, progress)):
        total += len(records)
        for record, (window, document) in zip(records, shape.cut(model, records), strict=True):
            longest = max(longest, len(document))
            if window is None:
                omitted.append((record.line, SkippedReason.TOO_SHORT))
                continue
            if key(window) in distinct:
                repeated.add(key(window))
                omitted.append((record.line, SkippedReason.REPEATED))
                continue
            distinct.add(key(window))
            entry = (record.line, window.copy())  # without the rest of a long record
            if limit is None or len(drawn) < limit:
                drawn.append(entry)
            elif (index := int(random.integers(len(distinct)))) < limit:
                drawn[index] = entry
    drawn.sort(key=lambda entry: entry[0])
    return WindowSample(
        path=path,
        rows=tuple(row for _, row in drawn),
        line=np.array([line for line, _ in drawn], dtype=np.int64),
        repeated=np.array([key(row) in repeated for _, row in drawn], dtype=np.bool_),
        omitted=tuple(omitted),
        records=total,
        usable=len(distinct),
        longest=longest,
    )


def sides(
    model: LanguageModel,
    shape: WindowShape,
    samples: Sequence[WindowSample],
    advance: Advance = silent,
    columns: Columns | None = None,
) -> list[LabelledWindows]:
    """Label the windows of all samples, of which the first is the training data, by streaming each file.

    ``advance`` is called with the number of records read.
    """
    keys = [{key(row) for row in windows_of_file.rows} for windows_of_file in samples]
    counter = CopyCounter([row[-shape.suffix :] for windows_of_file in samples for row in windows_of_file.rows])
    shared: set[bytes] = set()
    before: set[bytes] = set()
    in_both: set[bytes] = set()
    for i, windows_of_file in enumerate(samples):
        other_keys = set().union(*keys[:i], *keys[i + 1 :])
        digests: set[bytes] = set()
        for records in _batches(_records(windows_of_file.path, columns)):
            cuts = shape.cut(model, records)
            if i == 0:
                counter.add([cut.document for cut in cuts])
            if len(samples) > 1:  # shared windows are searched among all records, not only those drawn
                digests.update(key(cut.window) for cut in cuts if cut.window is not None)
            advance(len(cuts))
        shared |= other_keys & digests
        in_both |= before & digests
        before |= digests
    copies = np.split(counter.counts, np.cumsum([len(windows_of_file.rows) for windows_of_file in samples])[:-1])
    cut_sides = []
    for windows_of_file, count in zip(samples, copies, strict=True):
        there_too = np.array([name in shared for name in map(key, windows_of_file.rows)], dtype=np.bool_)
        alone = ~windows_of_file.repeated if in_both else np.ones(len(there_too), dtype=np.bool_)
        cut_sides.append(
            LabelledWindows(
                sample=windows_of_file,
                copies=count,
                shared=there_too,
                compared=alone & ~there_too,
                in_both=len(in_both),
            )
        )
    return cut_sides


def cues(rows: Sequence[NDArray[np.int64]], suffix: int) -> NDArray[np.float32]:
    """The fraction [rows] of each suffix's tokens that occur in its prefix and may be copied rather than recalled."""
    return np.array([np.isin(row[-suffix:], row[:-suffix]).mean() for row in rows], dtype=np.float32)


def token_batches(
    model: LanguageModel, path: DataPath, columns: Columns
) -> Iterator[tuple[list[int], list[NDArray[np.int64]]]]:
    """Lines and tokens of complete records, without BOS, in batches."""
    front = int(begins_with_bos(model))
    for records in _batches(_records(path, columns)):
        rows = encode(model, [record.text for record in records])
        yield [record.line for record in records], [row[front:] for row in rows]


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    while batch := list(itertools.islice(records, _RECORDS)):
        yield batch


def _records(path: DataPath, columns: Columns | None) -> Iterator[Record]:
    if columns is None or not columns.pair:
        return read_records(path, columns)
    return (Record(pair.line, pair.text, start=pair.start) for pair in iter_texts(path, columns=columns))
