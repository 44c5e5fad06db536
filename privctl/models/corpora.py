"""Encoded texts as flat columns, in memory or in memory-mapped files.

A column has one entry per token (``ids``, ``counted``, ``numbers``), per example (``ends``, the offset where its tokens
end, ``records``, ``units``, ``keys``, ``shares``) or per record (``labels``; ``targets``, several; ``kept``, bytes
that end at the offset ``kept_ends``). Columns are written sequentially in small pieces, so that memory does not grow
with the data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from privctl.domain.errors import InputError
from privctl.models.tasks.units import Units

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Column -> type of its entries.
COLUMNS: Mapping[str, type[np.generic]] = {
    "ids": np.int32,
    "counted": np.bool_,
    "ends": np.int64,
    "records": np.int64,
    "units": np.int64,
    "keys": np.uint64,
    "shares": np.int32,
    "labels": np.int32,
    "targets": np.float32,
    "numbers": np.int32,
    "kept": np.uint8,
    "kept_ends": np.int64,
}
_PER_TOKEN = ("ids", "counted", "numbers", "kept")
#: Bytes of token ids that are buffered before they are written.
_BUFFERED = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One example: its token ``ids`` (length,) int32, and flags ``counted`` (length,) of the tokens in its loss.

    Counted tokens are those that a causal model predicts, or that may be masked for a masked model. ``record`` is the
    index of its record, ``key`` a hash of its content. ``numbers`` (length,) int32 has a number per token for tasks
    that need one, such as a label or segment; None for others.
    """

    ids: NDArray[np.int32]
    counted: NDArray[np.bool_]
    record: int
    key: int
    numbers: NDArray[np.int32] | None = None


class EncodedRecord(NamedTuple):
    """The examples of one record.

    ``unit`` names its unit of privacy, None if the record is its own. ``share`` is the weight of each example within
    the unit, None for the number of its counted tokens. ``targets`` are a head's target numbers. ``shortened`` says
    that the text was truncated. ``kept`` is what evaluation needs of the text.
    """

    examples: Sequence[Encoded]
    unit: str | None = None
    share: int | None = None
    label: int | None = None
    targets: Sequence[float] = ()
    shortened: bool = False
    kept: bytes = b""


class Examples(Sequence[Encoded]):
    """The examples of a corpus, each built from the columns on access."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._ids, self._counted = columns["ids"], columns["counted"]
        self._ends, self._records, self._keys = columns["ends"], columns["records"], columns["keys"]
        self._numbers = columns["numbers"]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> Encoded: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Encoded]: ...

    def __getitem__(self, place: int | slice) -> Encoded | Sequence[Encoded]:
        """The example or examples at ``place``; raises ValueError if the tokens were not kept."""
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        place = range(len(self))[place]
        tokens = slice(int(self._ends[place - 1]) if place else 0, int(self._ends[place]))
        if tokens.stop > len(self._ids):
            raise ValueError("only the lengths of these examples were kept")
        return Encoded(
            ids=self._ids[tokens],
            counted=self._counted[tokens],
            record=int(self._records[place]),
            key=int(self._keys[place]),
            numbers=self._numbers[tokens] if len(self._numbers) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Encoded records with their units; ``shortened`` is how many were truncated.

    ``ends`` (examples,) is the total number of tokens up to the end of each example. ``labels`` has the number of each
    record's label, and ``targets`` (records, outputs) a head's target numbers, if they were read; ``kept_of`` returns
    what evaluation needs of a record's text.
    """

    examples: Sequence[Encoded]
    units: Units
    ends: NDArray[np.int64]
    labels: NDArray[np.int32]
    targets: NDArray[np.float32]
    records: int
    shortened: int = 0
    kept: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)
    kept_ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], shortened: int = 0) -> Corpus:
        """The corpus with these ``columns``."""
        records = int(columns["records"][-1]) + 1
        return cls(
            examples=Examples(columns),
            units=Units(columns["units"], columns["shares"], columns["keys"]),
            ends=columns["ends"],
            labels=columns["labels"],
            targets=columns["targets"].reshape(records, -1),
            records=records,
            shortened=shortened,
            kept=columns["kept"],
            kept_ends=columns["kept_ends"],
        )

    def length(self, example: int) -> int:
        """The number of tokens of an example."""
        return int(self.ends[example]) - (int(self.ends[example - 1]) if example else 0)

    def kept_of(self, record: int) -> bytes:
        """What was kept of a record's text."""
        return self.kept[int(self.kept_ends[record - 1]) if record else 0 : int(self.kept_ends[record])].tobytes()

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of every example, (examples,)."""
        return np.diff(self.ends, prepend=0)


class CorpusStorage(Protocol):
    """Storage for corpora."""

    def corpus(self, records: Iterable[EncodedRecord]) -> Corpus:
        """Store ``records``, which are consumed, as a corpus; raises InputError if there are none."""
        ...


def write_columns(records: Iterable[EncodedRecord], sinks: Mapping[str, Callable[[bytearray], object]]) -> int:
    """Pass the columns of ``records`` to ``sinks``, in pieces, and return how many records were truncated.

    Raises InputError if there are no records.
    """
    buffers = {name: bytearray() for name in COLUMNS}

    def flush() -> None:
        for name, content in buffers.items():
            sinks[name](content)
            buffers[name] = bytearray()

    end = shortened = units = kept = 0
    numbers: dict[str, int] = {}
    for record in records:
        unit = units if record.unit is None else numbers.setdefault(record.unit, units)
        units = max(units, unit + 1)
        shortened += record.shortened
        if record.label is not None:
            buffers["labels"] += np.int32(record.label).tobytes()
        buffers["targets"] += np.asarray(record.targets, np.float32).tobytes()
        if record.kept:
            kept += len(record.kept)
            buffers["kept"] += record.kept
            buffers["kept_ends"] += kept.to_bytes(8, sys.byteorder)
        for example in record.examples:
            end += len(example.ids)
            share = record.share or int(example.counted.sum())
            for name, content in _columns_of_example(example, end, unit, share):
                buffers[name] += content
        if len(buffers["ids"]) >= _BUFFERED:
            flush()
    if not end:
        raise InputError("there are no records to train on; give at least one")
    flush()
    return shortened


def _columns_of_example(example: Encoded, end: int, unit: int, share: int) -> Iterator[tuple[str, bytes]]:
    """(column, bytes) that an example adds to the columns with an entry per token or per example."""
    yield "ids", example.ids.tobytes()
    yield "counted", example.counted.tobytes()
    if example.numbers is not None:
        yield "numbers", example.numbers.tobytes()
    for name, value in (
        ("ends", end),
        ("records", example.record),
        ("units", unit),
        ("keys", example.key),
        ("shares", share),
    ):
        yield name, value.to_bytes(np.dtype(COLUMNS[name]).itemsize, sys.byteorder)


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """Keeps corpora in memory, 5 bytes per token; without ``tokens``, only their lengths and units."""

    tokens: bool = True

    def corpus(self, records: Iterable[EncodedRecord]) -> Corpus:
        """See ``CorpusStorage``."""
        columns = {name: bytearray() for name in COLUMNS}
        sinks: dict[str, Callable[[bytearray], object]] = {name: column.extend for name, column in columns.items()}
        if not self.tokens:
            sinks |= dict.fromkeys(_PER_TOKEN, len)
        shortened = write_columns(records, sinks)
        return Corpus.of({name: np.frombuffer(column, COLUMNS[name]) for name, column in columns.items()}, shortened)


IN_MEMORY = InMemory()
