"""Where a value stands in a JSON text."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

#: A key of an object or a position in a list.
Step = str | int

_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class JsonLines:
    """The lines of a text that is valid JSON. Every list and object on the way is gone through once, when needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: list[int] | None = None
        self._inside: dict[int, dict[Step, int]] = {}

    def of(self, steps: Sequence[Step]) -> int:
        """The line, from 1, of the value that ``steps`` lead to, or of the last one on the way that is there.

        ``JsonLines('{"a":\\n [1,\\n 2]}').of(["a", 1])`` is 3.
        """
        at = self._skip(0)
        for step in steps:
            if at not in self._inside:
                self._inside[at] = dict(self._members(at))
            found = self._inside[at].get(step)
            if found is None:
                break
            at = found
        if self._ends is None:
            self._ends = [found.start() for found in re.finditer("\n", self._text)]
        return bisect_left(self._ends, at) + 1

    def _members(self, at: int) -> Iterator[tuple[Step, int]]:
        """The members of the object or the items of the list that begins at ``at``; none of anything else."""
        opening = self._text[at]
        if opening not in "{[":
            return
        at, index = self._skip(at + 1), 0
        while self._text[at] not in "}]":
            step: Step = index
            if opening == "{":
                step, at = _DECODER.raw_decode(self._text, at)
                at = self._skip(self._skip(at) + 1)  # the colon
            yield step, at
            _, at = _DECODER.raw_decode(self._text, at)
            at, index = self._skip(at), index + 1
            if self._text[at] == ",":
                at = self._skip(at + 1)

    def _skip(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        return at if found is None else found.end()
