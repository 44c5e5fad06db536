"""Finding a secret's value in texts: where in its own records it stands, and whether it stands in others too."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping

#: Characters searched at once.
_BLOCK = 1 << 22
#: Between two texts: no value holds it.
_BETWEEN = "\0\0"


def occurrence(text: str, value: str) -> tuple[int, int] | None:
    """The first place of ``value`` among the characters of ``text``, from and to; None where there is none.

    As it is written comes before other cases of its letters, and as a word of its own before a part of a longer one.
    """
    plain = re.escape(value)
    left = r"(?<!\w)" if _wordlike(value[0]) else ""
    right = r"(?!\w)" if _wordlike(value[-1]) else ""
    whole = f"{left}{plain}{right}"
    for pattern, flags in ((whole, 0), (plain, 0), (whole, re.IGNORECASE), (plain, re.IGNORECASE)):
        if not flags and value not in text:
            continue
        if found := re.search(pattern, text, flags):
            return found.span()
    return None


def _wordlike(character: str) -> bool:
    return character.isalnum() or character == "_"


class OtherOccurrences:
    """Which of some values stand in other texts than their own, as whole words; texts stream by."""

    def __init__(self, own: Mapping[str, Collection[int]]) -> None:
        """``own`` are the numbers of the texts that may hold each value."""
        self._own = {value: frozenset(numbers) for value, numbers in own.items() if _BETWEEN not in value}
        self._texts: list[str] = []
        self._numbers: list[int] = []
        self._size = 0
        self._found: set[str] = set()

    def add(self, number: int, text: str) -> None:
        """Look at one more text."""
        self._texts.append(text)
        self._numbers.append(number)
        self._size += len(text)
        if self._size >= _BLOCK:
            self._search()

    def found(self) -> frozenset[str]:
        """The values seen in texts that are not theirs."""
        self._search()
        return frozenset(self._found)

    def _search(self) -> None:
        block = _BETWEEN.join(self._texts)
        starts = [0]
        for text in self._texts:
            starts.append(starts[-1] + len(text) + len(_BETWEEN))
        for value, own in self._own.items():
            if value not in self._found and self._strays(block, starts, value, own):
                self._found.add(value)
        self._texts, self._numbers, self._size = [], [], 0

    def _strays(self, block: str, starts: list[int], value: str, own: Collection[int]) -> bool:
        place = block.find(value)
        while place >= 0:
            text = bisect_right(starts, place) - 1
            if self._numbers[text] in own:
                place = block.find(value, starts[text + 1])
            elif _alone(block, place, place + len(value)):
                return True
            else:
                place = block.find(value, place + 1)
        return False


def _alone(text: str, begin: int, end: int) -> bool:
    """Whether no word goes on beyond either end."""
    before = begin > 0 and _wordlike(text[begin]) and _wordlike(text[begin - 1])
    after = end < len(text) and _wordlike(text[end - 1]) and _wordlike(text[end])
    return not before and not after
