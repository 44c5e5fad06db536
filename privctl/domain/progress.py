"""Progress reporting: the types that engines call and the terminal implements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

#: Called with the amount of work just done; may be called from any thread.
Advance = Callable[[float], None]
#: (label, total, unit) -> a context manager that yields an ``Advance``.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]
#: Returns the latest measurements by name; called rarely, by the thread that advances.
Detail = Callable[[], Mapping[str, float]]
#: As ``Progress``, with measurements beside the bar.
DetailedProgress = Callable[[str, float, str, Detail], AbstractContextManager[Advance]]
#: Called with a sentence that the user should read.
Notify = Callable[[str], None]


def silent(_: float) -> None:
    """An ``Advance`` that shows nothing."""


@contextmanager
def unseen(label: str, total: float, unit: str) -> Iterator[Advance]:
    """A ``Progress`` that shows nothing."""
    yield silent
