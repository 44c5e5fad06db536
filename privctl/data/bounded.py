"""At most so many records of each owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from privctl.data.texts import TextRecord


def bounded(records: Iterable[TextRecord], most: int) -> Iterator[TextRecord]:
    """The first ``most`` records of each ``unit``, from then on without it: each is an example of its own.

    Which of an owner's records are kept does not depend on anyone else's, so that leaving one owner out leaves the
    others as they are.
    """
    seen: Counter[str | None] = Counter()
    for record in records:
        seen[record.unit] += 1
        if seen[record.unit] <= most:
            yield replace(record, unit=None)
