"""Finds a secret's value in texts: its position in its own records, and whether other records contain it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping

#: The number of characters searched at once.
_BLOCK = 1 << 22
#: Separator of texts, which no value contains.
_BETWEEN = "\0\0"


def occurrence(text: str, value: str) -> tuple[int, int] | None:
    """The first occurrence of ``value`` in ``text``, as a half-open range of characters; None if there is none.

    An exact match takes precedence over one in another letter case, and a whole word over part of a longer one.
    """
    plain = re.escape(value)
    left = r"(?<!\w)" if _is_wordlike(value[0]) else ""
    right = r"(?!\w)" if _is_wordlike(value[-1]) else ""
    as_word = f"{left}{plain}{right}"
    for pattern, flags in ((as_word, 0), (plain, 0), (as_word, re.IGNORECASE), (plain, re.IGNORECASE)):
        if not flags and value not in text:
            continue
        if match := re.search(pattern, text, flags):
            return match.span()
    return None


def _is_wordlike(character: str) -> bool:
    return character.isalnum() or character == "_"


class OtherOccurrences:
    """Finds values that occur, as whole words, in texts other than their own; texts are streamed."""

    def __init__(self, own_texts: Mapping[str, Collection[int]]) -> None:
        """``own_texts`` are the numbers of the texts that may contain each value."""
        self._own_texts = {value: frozenset(numbers) for value, numbers in own_texts.items() if _BETWEEN not in value}
        self._texts: list[str] = []
        self._numbers: list[int] = []
        self._size = 0
        self._occurring: set[str] = set()

    def add(self, number: int, text: str) -> None:
        """Add another text."""
        self._texts.append(text)
        self._numbers.append(number)
        self._size += len(text)
        if self._size >= _BLOCK:
            self._search()

    def values(self) -> frozenset[str]:
        """The values that occur in texts other than their own."""
        self._search()
        return frozenset(self._occurring)

    def _search(self) -> None:
        block = _BETWEEN.join(self._texts)
        starts = [0]
        for text in self._texts:
            starts.append(starts[-1] + len(text) + len(_BETWEEN))
        for value, own_texts in self._own_texts.items():
            if value not in self._occurring and self._strays(block, starts, value, own_texts):
                self._occurring.add(value)
        self._texts, self._numbers, self._size = [], [], 0

    def _strays(self, block: str, starts: list[int], value: str, own_texts: Collection[int]) -> bool:
        place = block.find(value)
        while place >= 0:
            text = bisect_right(starts, place) - 1
            if self._numbers[text] in own_texts:
                place = block.find(value, starts[text + 1])
            elif _is_whole_word(block, place, place + len(value)):
                return True
            else:
                place = block.find(value, place + 1)
        return False


def _is_whole_word(text: str, begin: int, end: int) -> bool:
    """Whether the span neither starts nor ends inside a word."""
    before = begin > 0 and _is_wordlike(text[begin]) and _is_wordlike(text[begin - 1])
    after = end < len(text) and _is_wordlike(text[end - 1]) and _is_wordlike(text[end])
    return not before and not after
