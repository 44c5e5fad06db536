"""How long work tells how far it is: the one type that every engine takes and the terminal gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

#: Called with the amount of work just done; may be called from any thread.
Advance = Callable[[float], None]
#: (label, total, unit) -> a block that yields the function which advances it.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]
#: The latest measures of what is under way, by name; called seldom, by the thread that advances.
Detail = Callable[[], Mapping[str, float]]
#: As ``Progress``, showing measures beside the bar.
DetailedProgress = Callable[[str, float, str, Detail], AbstractContextManager[Advance]]
#: Called with a sentence that the user should read.
Notify = Callable[[str], None]


def silent(_: float) -> None:
    """An ``Advance`` that shows nothing."""


@contextmanager
def unseen(label: str, total: float, unit: str) -> Iterator[Advance]:
    """A ``Progress`` that shows nothing."""
    yield silent
