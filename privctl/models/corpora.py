"""Encoded texts as flat columns, in memory or in mapped files.

A column has one entry a token (``ids``, ``counted``, ``numbers``), an example (``ends``, where its tokens end,
``records``, ``units``, ``keys``, ``shares``) or a record (``labels``; ``targets`` has several; ``kept`` is bytes, which
end at ``kept_ends``). It is written from its beginning to its end in small pieces, so that memory does not grow with
the data.
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

#: The type of each column.
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
_OF_TOKENS = ("ids", "counted", "numbers", "kept")
#: Bytes of tokens that are gathered before they are written.
_GATHERED = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One example: ``ids`` (length,) int32, and ``counted`` (length,) bool.

    Counted are the tokens that a causal model predicts, or that a masked one may be asked for. ``record`` is the
    position of its record, ``key`` the number of its content. ``numbers`` (length,) int32 is what a task on single
    tokens knows of each, None for others.
    """

    ids: NDArray[np.int32]
    counted: NDArray[np.bool_]
    record: int
    key: int
    numbers: NDArray[np.int32] | None = None


class EncodedRecord(NamedTuple):
    """The examples of one record.

    ``unit`` names its unit of privacy, None where it is one by itself. ``share`` is that of each example within the
    unit, None for its counted tokens. ``targets`` are the numbers that a head is to give. ``shortened`` says that the
    text was truncated. ``kept`` is what an evaluation needs of the text.
    """

    examples: Sequence[Encoded]
    unit: str | None = None
    share: int | None = None
    label: int | None = None
    targets: Sequence[float] = ()
    shortened: bool = False
    kept: bytes = b""


class Examples(Sequence[Encoded]):
    """The examples of a corpus, each made from the columns when it is asked for."""

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
        """The example at ``place``; raises ValueError where the tokens were not kept."""
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
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
    """Encoded records with their units; ``shortened`` records were truncated.

    ``ends`` (examples,) counts all tokens to the end of each example. ``labels`` has the number of each record's
    label, ``targets`` (records, outputs) the numbers that a head is to give, if they were read;
    ``kept_of`` gives what an evaluation needs of a record's text.
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
        """The corpus in ``columns``."""
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
        """Tokens of an example."""
        return int(self.ends[example]) - (int(self.ends[example - 1]) if example else 0)

    def kept_of(self, record: int) -> bytes:
        """What was kept of the text of a record."""
        return self.kept[int(self.kept_ends[record - 1]) if record else 0 : int(self.kept_ends[record])].tobytes()

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every example."""
        return np.diff(self.ends, prepend=0)


class Shelf(Protocol):
    """Where corpora are kept."""

    def corpus(self, records: Iterable[EncodedRecord]) -> Corpus:
        """A corpus of ``records``, which are used up; raises InputError where there are none."""
        ...


def write_columns(records: Iterable[EncodedRecord], sinks: Mapping[str, Callable[[bytearray], object]]) -> int:
    """Hand the columns of ``records`` to ``sinks``, in pieces; returns how many were shortened.

    Raises InputError where there are no records.
    """
    waiting = {name: bytearray() for name in COLUMNS}

    def hand_on() -> None:
        for name, content in waiting.items():
            sinks[name](content)
            waiting[name] = bytearray()

    end = shortened = units = kept = 0
    numbers: dict[str, int] = {}
    for record in records:
        unit = units if record.unit is None else numbers.setdefault(record.unit, units)
        units = max(units, unit + 1)
        shortened += record.shortened
        if record.label is not None:
            waiting["labels"] += np.int32(record.label).tobytes()
        waiting["targets"] += np.asarray(record.targets, np.float32).tobytes()
        if record.kept:
            kept += len(record.kept)
            waiting["kept"] += record.kept
            waiting["kept_ends"] += kept.to_bytes(8, sys.byteorder)
        for example in record.examples:
            end += len(example.ids)
            share = record.share or int(example.counted.sum())
            for name, content in _of_example(example, end, unit, share):
                waiting[name] += content
        if len(waiting["ids"]) >= _GATHERED:
            hand_on()
    if not end:
        raise InputError("there are no records to train on; give at least one")
    hand_on()
    return shortened


def _of_example(example: Encoded, end: int, unit: int, share: int) -> Iterator[tuple[str, bytes]]:
    """What an example adds to the columns that have entries of it or of its tokens."""
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
    """Keeps corpora in memory, 5 bytes a token; without ``tokens`` only what tells their lengths and units."""

    tokens: bool = True

    def corpus(self, records: Iterable[EncodedRecord]) -> Corpus:
        """See ``Shelf``."""
        columns = {name: bytearray() for name in COLUMNS}
        sinks: dict[str, Callable[[bytearray], object]] = {name: column.extend for name, column in columns.items()}
        if not self.tokens:
            sinks |= dict.fromkeys(_OF_TOKENS, len)
        shortened = write_columns(records, sinks)
        return Corpus.of({name: np.frombuffer(column, COLUMNS[name]) for name, column in columns.items()}, shortened)


IN_MEMORY = InMemory()
