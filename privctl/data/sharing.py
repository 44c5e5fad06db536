"""Which users are in which records, by numbers."""

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
    """Which users are in which records: entry i says that ``users[i]`` is in record ``records[i]``.

    Both are numbered from 0 in the order of reading, and entries are in the order of records. A record has an entry for
    each of its users.
    """

    records: Numbers
    users: Numbers

    @classmethod
    def of(cls, named: Iterable[Sequence[str]]) -> Sharing:
        """That of records that name these users."""
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
        """In how many records each user is, [users]; with ``kept`` [records], in how many of these."""
        people = int(self.users.max()) + 1 if len(self.users) else 0
        users = self.users if kept is None else self.users[kept[self.records]]
        return np.bincount(users, minlength=people)

    def by_record(self) -> list[list[int]]:
        """The users of each record."""
        ends = np.searchsorted(self.records, np.arange(1, len(self)))
        return [part.tolist() for part in np.split(self.users, ends)]
