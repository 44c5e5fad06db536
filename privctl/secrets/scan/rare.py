"""Rare words: those that occur in few records, counted exactly in bounded memory.

A word is a run of letters, digits and underscores, compared without case. A first pass counts, for each of many hash
buckets, how many pairs of a word and a record fall into it. A word whose bucket has too few is in too few records
itself, and is skipped in the second pass, which counts the remaining words exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.secrets.scan.kinds.place import Occurrence

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD = re.compile(r"\w+")
_BUCKETS = 1 << 25
_BATCH = 1 << 19


def words(text: str) -> dict[str, str]:
    """{lower-case word: its first spelling} of the words of ``text``, in order."""
    as_written = _WORD.findall(text)
    lower = list(map(str.lower, as_written))
    first_forms = dict(zip(lower, as_written, strict=True))
    first_forms.update(zip(reversed(lower), reversed(as_written), strict=True))
    return first_forms


def places(text: str) -> Iterator[Occurrence]:
    """Every word of ``text`` as an occurrence."""
    for match in _WORD.finditer(text):
        word = match[0]
        yield Occurrence(match.start(), match.end(), word.lower(), word)


class Sieve:
    """Filters the words that may be in at least ``least`` records; its counts [buckets] saturate at ``least``."""

    def __init__(self, least: int, buckets: int = _BUCKETS) -> None:
        """``buckets`` is a power of 2. For ``least`` 1, nothing is counted and every word is kept."""
        self._least, self._mask = least, buckets - 1
        self._counts: NDArray[Any] = np.zeros(buckets if least > 1 else 0, np.uint8 if least < 256 else np.uint32)
        self._counts_view = self._counts.data
        self._waiting: list[int] = []

    @property
    def is_needed(self) -> bool:
        """Whether a counting pass over the data is needed."""
        return self._least > 1

    def add(self, of_record: Iterable[str]) -> None:
        """Count the distinct words of one record."""
        self._waiting.extend(map(hash, of_record))
        if len(self._waiting) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Count the words that are still queued; must be called before ``filter``."""
        slots, counts = np.unique(np.array(self._waiting, np.int64) & self._mask, return_counts=True)
        self._counts[slots] = np.minimum(self._counts[slots] + counts, self._least)
        self._waiting = []

    def filter(self, of_record: Iterable[str]) -> Sequence[str]:
        """The words of a record that may be in enough records; the others certainly are not."""
        if not self.is_needed:
            return list(of_record)
        counts, mask, least = self._counts_view, self._mask, self._least
        return [word for word in of_record if counts[hash(word) & mask] >= least]
