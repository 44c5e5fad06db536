"""The findings of a scan: which matches count, and every distinct secret with its records, 8 bytes per membership.

Matches of different kinds may overlap. Matches of what the user specified always count. Among other overlapping
matches the longest counts, then the first in the table of kinds; none counts within a match of what the user specified.
A secret that counts nowhere is dropped, because it is part of another wherever it occurs. A secret that counts
somewhere keeps all its records, including those in which it is only part of another, because these reveal it as well.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privctl.secrets.scan.kinds import SecretKind
from privctl.secrets.scan.kinds.place import Claimed, Occurrence
from privctl.secrets.table import Secret

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecretGroup:
    """The secrets of one kind, in order of first occurrence: value i is in ``records[starts[i]:starts[i + 1]]``.

    ``records`` [memberships] and ``starts`` [secrets + 1] are int64; a secret's records are sorted.
    """

    kind: str
    values: tuple[str, ...]
    starts: NDArray[np.int64]
    records: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def holders(self) -> int:
        """The number of records that hold at least one of the secrets."""
        return len(np.unique(self.records))

    @property
    def most(self) -> int:
        """The largest number of records of a secret; 0 if there are no secrets."""
        return int(np.diff(self.starts).max(initial=0))

    def secrets(self) -> Iterator[Secret]:
        """The secrets, named ``KIND-1``, ``KIND-2``, ..."""
        for i, value in enumerate(self.values):
            records = self.records[self.starts[i] : self.starts[i + 1]]
            yield Secret(id=f"{self.kind}-{i + 1}", kind=self.kind, records=records, value=value)


class SecretCandidate(NamedTuple):
    """A text that may be a secret: the number of its ``kind``, its ``key``, and its ``value`` as first written.

    ``counts`` says whether a match of it counts in some record. It is in ``total`` records; ``records`` (int64,
    increasing) are all of them, or the first ones if only a limited number is stored.
    """

    kind: int
    key: str
    value: str
    counts: bool
    total: int
    records: NDArray[np.int64]


class SecretOccurrences:
    """Secrets of several kinds by key, in the order in which they were found."""

    def __init__(self, kinds: Sequence[str], most: int | None = None) -> None:
        """Records of a secret beyond ``most`` are counted but not stored, since such a secret is dropped."""
        self._names, self._most = tuple(kinds), most
        self._numbers: tuple[dict[str, int], ...] = tuple({} for _ in kinds)
        self._values: list[str] = []
        self._counts_somewhere = bytearray()
        self._kinds, self._counts, self._last = array("H"), array("I"), array("q")
        self._owners, self._records = array("I"), array("I")

    def __len__(self) -> int:
        return len(self._values)

    @property
    def memberships(self) -> int:
        """The number of stored (secret, record) pairs."""
        return len(self._owners)

    def most_numerous(self) -> str:
        """The kind with the most secrets."""
        return max(zip(map(len, self._numbers), self._names, strict=True))[1]

    def add(self, kind: int, key: str, value: str, record: int, counts: bool) -> None:
        """Add that ``record`` holds the secret ``key``, written ``value``. Records must be added in order."""
        number = self._number(kind, key, value)
        if counts:
            self._counts_somewhere[number] = 1
        if self._last[number] == record:
            return
        self._last[number] = record
        self._counts[number] += 1
        if self._most is None or self._counts[number] <= self._most:
            self._owners.append(number)
            self._records.append(record)

    def add_candidate(self, candidate: SecretCandidate, before: int) -> None:
        """Add a candidate of a later shard, whose records follow the ``before`` records of earlier ones."""
        number = self._number(candidate.kind, candidate.key, candidate.value)
        self._counts_somewhere[number] |= candidate.counts
        room = len(candidate.records) if self._most is None else max(0, self._most - self._counts[number])
        self._counts[number] += candidate.total
        records = candidate.records[:room] + before
        self._owners.extend([number] * len(records))
        self._records.extend(records.tolist())

    def candidates(self) -> Iterator[SecretCandidate]:
        """Everything found, in the order in which it was first found, including what counts nowhere."""
        owners = _array(self._owners, np.uint32)
        order = np.argsort(owners, kind="stable")
        records = _array(self._records, np.uint32)[order].astype(np.int64)
        ends = np.cumsum(np.bincount(owners, minlength=len(self)))
        keys = {number: key for numbers in self._numbers for key, number in numbers.items()}
        begin = 0
        for number, end in enumerate(ends.tolist()):
            yield SecretCandidate(
                kind=self._kinds[number],
                key=keys[number],
                value=self._values[number],
                counts=bool(self._counts_somewhere[number]),
                total=self._counts[number],
                records=records[begin:end],
            )
            begin = end

    def stored_in(self, least: int) -> int:
        """The number of stored memberships of secrets that are in at least ``least`` records."""
        counts = _array(self._counts, np.uint32)
        stored = counts if self._most is None else np.minimum(counts, self._most)
        return int(stored[counts >= least].sum(dtype=np.int64))

    def _number(self, kind: int, key: str, value: str) -> int:
        number = self._numbers[kind].get(key)
        if number is None:
            number = self._numbers[kind][key] = len(self._values)
            self._values.append(key if value == key else value)  # share one string if they are equal
            self._kinds.append(kind)
            self._counts.append(0)
            self._last.append(-1)
            self._counts_somewhere.append(0)
        return number

    def groups(self, least: int = 1) -> Iterator[SecretGroup]:
        """The secrets of each kind that count somewhere, in at least ``least`` and at most ``most`` records."""
        counts = _array(self._counts, np.uint32)
        selected = _array(self._counts_somewhere, np.uint8).astype(bool) & (counts >= least)
        if self._most is not None:
            selected &= counts <= self._most
        owners = _array(self._owners, np.uint32)
        order = np.argsort(owners, kind="stable")
        order = order[selected[owners[order]]]
        owners, records = owners[order], _array(self._records, np.uint32)[order].astype(np.int64)
        kinds = _array(self._kinds, np.uint16)
        for kind, name in enumerate(self._names):
            chosen = np.flatnonzero(selected & (kinds == kind))
            yield SecretGroup(
                kind=name,
                values=tuple(self._values[number] for number in chosen),
                starts=np.concatenate([[0], np.cumsum(counts[chosen], dtype=np.int64)]),
                records=records[kinds[owners] == kind],
            )


def _array(raw: array[Any] | bytearray, dtype: type[Any]) -> NDArray[Any]:
    return np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)


_DIGIT = re.compile("[0-9]")


class OccurrenceClaim(NamedTuple):
    """An occurrence, ``place``, of the kind with this number, and whether it ``counts``."""

    kind: int
    place: Occurrence
    counts: bool


def resolve_matches(kinds: Sequence[SecretKind], text: str) -> list[OccurrenceClaim]:
    """All matches of ``kinds`` in ``text``, in the order of the text, and whether each counts."""
    digits = _DIGIT.search(text) is not None
    matches = [
        (number, occurrence)
        for number, kind in enumerate(kinds)
        if digits or not kind.digits
        for occurrence in kind.find(text)
    ]
    if len(matches) < 2:
        return [OccurrenceClaim(number, occurrence, True) for number, occurrence in matches]
    claimed_by_user = Claimed(len(text))
    for number, occurrence in matches:
        if kinds[number].by_user:
            claimed_by_user.add(occurrence)
    matches.sort(key=lambda match: (match[1].start - match[1].end, match[0]))  # longest first
    claimed = Claimed(len(text))
    resolved = []
    for number, occurrence in matches:
        counts = kinds[number].by_user or not (claimed_by_user.contains(occurrence) or claimed.overlaps(occurrence))
        if counts and not kinds[number].by_user:
            claimed.add(occurrence)
        resolved.append(OccurrenceClaim(number, occurrence, counts))
    # Sorted, so that secrets are numbered in the order of their first occurrence.
    return sorted(resolved, key=lambda claim: claim.place.start)


def not_covered(places: Iterator[Occurrence], claimed: Sequence[OccurrenceClaim], size: int) -> Iterator[Occurrence]:
    """The ``places`` in a text of ``size`` characters that ``claimed`` does not cover entirely."""
    covered = Claimed(size)
    for claim in claimed:
        covered.add(claim.place)
    return (occurrence for occurrence in places if not covered.contains(occurrence))
