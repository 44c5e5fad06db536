"""Occurrences of secrets in a text, and character classes that all detectors share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

#: Letters and digits of scripts that separate words by spaces, for character classes. Only these delimit secrets: in
#: other scripts (Chinese, Japanese, Thai, ...) a secret may be adjacent to other words.
SPACED = r"0-9A-Za-z_\u00aa\u00b5\u00ba\u00c0-\u058f"

#: Spaces, hyphens and dashes that people and word processors put between digits, for character classes.
SPACES = r" \u00a0\u2007\u2009\u202f"
DASHES = r"\-\u2010-\u2015\u2212"


class Occurrence(NamedTuple):
    """An occurrence of a secret: its ``value`` as written, and its ``key``, equal for all ways of writing the secret.

    It claims the characters from ``start`` to ``end``, which may include the context by which it was found.
    """

    start: int
    end: int
    key: str
    value: str


#: Finds occurrences in a text, in any order; they may overlap.
Find = Callable[[str], Iterable[Occurrence]]


class Claimed:
    """The characters of a text of length ``size`` that occurrences have claimed."""

    def __init__(self, size: int) -> None:
        self._taken = bytearray(size)

    def add(self, occurrence: Occurrence) -> None:
        """Claim the characters of ``occurrence``."""
        self._taken[occurrence.start : occurrence.end] = b"\1" * (occurrence.end - occurrence.start)

    def overlaps(self, occurrence: Occurrence) -> bool:
        """Whether a character of ``occurrence`` is claimed."""
        return self._taken.find(1, occurrence.start, occurrence.end) >= 0

    def contains(self, occurrence: Occurrence) -> bool:
        """Whether all characters of ``occurrence`` are claimed."""
        return self._taken.find(0, occurrence.start, occurrence.end) < 0


def without_overlaps(places: Iterable[Occurrence], size: int) -> list[Occurrence]:
    """``places`` in a text of length ``size``, without those that overlap an earlier one."""
    kept: list[Occurrence] = []
    claimed: Claimed | None = None
    for occurrence in places:
        claimed = claimed or Claimed(size)
        if not claimed.overlaps(occurrence):
            claimed.add(occurrence)
            kept.append(occurrence)
    return kept
