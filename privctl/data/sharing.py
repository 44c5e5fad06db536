"""Which users are in which records, both identified by number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Pairs of a user and a record: user ``users[i]`` is in record ``records[i]``.

    Both are numbered from 0 in reading order, and the pairs are sorted by record. Every record has at least one pair.
    """

    records: Numbers
    users: Numbers

    @classmethod
    def of(cls, named: Iterable[Sequence[str]]) -> Sharing:
        """From the users that each record names."""
        numbers: dict[str, int] = {}
        records: list[int] = []
        users: list[int] = []
        for record, names in enumerate(named):
            for name in names:
                records.append(record)
                users.append(numbers.setdefault(name, len(numbers)))
        return cls(np.asarray(records, np.int64), np.asarray(users, np.int64))

    def __len__(self) -> int:
        """The number of records."""
        return int(self.records[-1]) + 1 if len(self.records) else 0

    def counts(self, kept: Flags | None = None) -> Numbers:
        """How many records each user is in, [users]; with flags ``kept`` [records], how many of the kept ones."""
        people = int(self.users.max()) + 1 if len(self.users) else 0
        users = self.users if kept is None else self.users[kept[self.records]]
        return np.bincount(users, minlength=people)

    def by_record(self) -> list[list[int]]:
        """The users of each record."""
        ends = np.searchsorted(self.records, np.arange(1, len(self)))
        return [part.tolist() for part in np.split(self.users, ends)]
