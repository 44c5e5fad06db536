"""The users that each record belongs to, where it may belong to several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.data.columns import name_of
from privctl.domain.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]


def users_of(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """The users in a field that holds one or a list, each once, in their order.

    A string that begins with a bracket is a JSON array: the cell of a table, which has no lists. Raises InputError,
    naming ``where``, for an empty list and for anything in it but printable strings and integers.
    """
    value = row.get(key)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{where} has a bracket in {key!r} and no JSON array of users after it") from None
    if isinstance(value, dict):
        raise InputError(
            f"{where} has an object as {key!r}; expected a user (a string or an integer) or a list of users"
        )
    if not isinstance(value, list):
        return (name_of(row, key, where),)
    if not value:
        raise InputError(f"{where} has an empty list as {key!r}; name at least one user or remove the record")
    return tuple(dict.fromkeys(name_of({key: each}, key, where) for each in value))


def require_one_user(row: Mapping[str, Any], key: str, where: str) -> None:
    """Raise InputError where the field holds a list: whoever reads only one value would miss the others."""
    if isinstance(row.get(key), list):
        raise InputError(
            f"{where} has a list as {key!r}; records of several users are trained on by retrain dp-sgd "
            "--max-records-per-user with --shared-records, and by nothing else, so give a string or an integer"
        )


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
