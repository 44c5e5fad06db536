"""Limits on how many records each user contributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from privctl.data.selection import select
from privctl.data.sharing import Sharing
from privctl.data.texts import TextRecord
from privctl.domain.errors import InputError
from privctl.domain.shared_records import SharedRecords

if TYPE_CHECKING:
    from privctl.data.sharing import Flags


def bounded(records: Iterable[TextRecord], most: int) -> Iterator[TextRecord]:
    """The first ``most`` records of each ``unit``, with the unit removed, so that each is an example of its own.

    Which records of a unit are kept does not depend on other units, so removing one unit leaves all others unchanged.
    """
    seen: Counter[str | None] = Counter()
    for record in records:
        seen[record.unit] += 1
        if seen[record.unit] <= most:
            yield replace(record, unit=None)


class BoundedRecords:
    """Reads records that may have several ``users``, choosing by ``rule`` so that no user is in more than ``most``.

    ``read`` reads all records. The choice is made on the first pass and reused. ``name`` is the data's name in errors.
    """

    def __init__(self, read: Callable[[], Iterable[TextRecord]], most: int, rule: SharedRecords, name: str) -> None:
        self._read, self._most, self._rule, self._name = read, most, rule, name
        self._kept: Flags | None = None

    def __call__(self) -> Iterator[TextRecord]:
        """The chosen records, with their users removed. Raises as ``select`` does; InputError if the data changed."""
        kept, index = self.kept, -1
        for index, record in enumerate(self._read()):
            if index == len(kept):
                break
            if kept[index]:
                yield replace(record, users=())
        if index != len(kept) - 1:
            raise InputError(f"{self._name} changed while it was read; leave it as it is, and start again")

    @property
    def kept(self) -> Flags:
        """Which records are used, [records]."""
        if self._kept is None:
            sharing = Sharing.of(record.users for record in self._read())
            self._kept = select(sharing, self._most, self._rule, self._name)
        return self._kept
