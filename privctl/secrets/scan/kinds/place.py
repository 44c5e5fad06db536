"""The place of a secret in a text, and the characters around it that all detectors share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

#: Letters and digits of alphabets that put spaces between words, for character classes. Only these mark the borders of
#: a secret: in other scripts (Chinese, Japanese, Thai, ...) a secret may touch the words around it.
SPACED = r"0-9A-Za-z_\u00aa\u00b5\u00ba\u00c0-\u058f"

#: Spaces, hyphens and dashes as people and word processors put them between digits, for character classes.
SPACES = r" \u00a0\u2007\u2009\u202f"
DASHES = r"\-\u2010-\u2015\u2212"


class Occurrence(NamedTuple):
    """A secret ``value`` as it is written, and ``key``, the same for every way of writing the same secret.

    ``start`` to ``end`` are the characters it claims: its own, or more where what surrounds it gave it away.
    """

    start: int
    end: int
    key: str
    value: str


#: The places in a text, in no order; they may overlap.
Find = Callable[[str], Iterable[Occurrence]]


class Claimed:
    """The characters of a text of ``size`` that some place has claimed."""

    def __init__(self, size: int) -> None:
        self._taken = bytearray(size)

    def add(self, place: Occurrence) -> None:
        """Claim the characters of ``place``."""
        self._taken[place.start : place.end] = b"\1" * (place.end - place.start)

    def overlaps(self, place: Occurrence) -> bool:
        """Whether a character of ``place`` is claimed."""
        return self._taken.find(1, place.start, place.end) >= 0

    def contains(self, place: Occurrence) -> bool:
        """Whether all characters of ``place`` are claimed."""
        return self._taken.find(0, place.start, place.end) < 0


def without_overlaps(places: Iterable[Occurrence], size: int) -> list[Occurrence]:
    """``places`` in a text of ``size`` without those that overlap an earlier one."""
    kept: list[Occurrence] = []
    claimed: Claimed | None = None
    for place in places:
        claimed = claimed or Claimed(size)
        if not claimed.overlaps(place):
            claimed.add(place)
            kept.append(place)
    return kept
