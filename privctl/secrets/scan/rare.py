"""Rare words: those that occur in few records, counted exactly in bounded memory.

A word is a run of letters, digits and underscores; case does not tell words apart. A first pass counts, for each of
many buckets, how many words of records fall into it: what lies in a bucket with too few is in too few records itself,
and is left out of the second pass. What remains is counted exactly.
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
    """The different words of ``text`` in its order, in lower case, each with how it is first written."""
    written = _WORD.findall(text)
    lower = list(map(str.lower, written))
    found = dict(zip(lower, written, strict=True))
    found.update(zip(reversed(lower), reversed(written), strict=True))
    return found


def places(text: str) -> Iterator[Occurrence]:
    """Every word of ``text`` where it stands."""
    for match in _WORD.finditer(text):
        word = match[0]
        yield Occurrence(match.start(), match.end(), word.lower(), word)


class Sieve:
    """Keeps the words that may be in at least ``least`` records; counts [buckets] stop at what is asked for."""

    def __init__(self, least: int, buckets: int = _BUCKETS) -> None:
        """``buckets`` is a power of 2. Where one record is enough, nothing is counted: every word may be kept."""
        self._least, self._mask = least, buckets - 1
        self._counts: NDArray[Any] = np.zeros(buckets if least > 1 else 0, np.uint8 if least < 256 else np.uint32)
        self._seen = self._counts.data
        self._waiting: list[int] = []

    @property
    def needed(self) -> bool:
        """Whether a pass over the data is worth its time."""
        return self._least > 1

    def add(self, of_record: Iterable[str]) -> None:
        """Count the different words of one record."""
        self._waiting.extend(map(hash, of_record))
        if len(self._waiting) >= _BATCH:
            self.settle()

    def settle(self) -> None:
        """Count what waits; to be called before words are asked for."""
        places, counts = np.unique(np.array(self._waiting, np.int64) & self._mask, return_counts=True)
        self._counts[places] = np.minimum(self._counts[places] + counts, self._least)
        self._waiting = []

    def kept(self, of_record: Iterable[str]) -> Sequence[str]:
        """Those of ``of_record`` that may be in enough records; the others certainly are not."""
        if not self.needed:
            return list(of_record)
        seen, mask, least = self._seen, self._mask, self._least
        return [word for word in of_record if seen[hash(word) & mask] >= least]
