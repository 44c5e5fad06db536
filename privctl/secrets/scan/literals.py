"""Finds texts that the user lists, any number of them, in one pass over each record.

Matches are case-sensitive. If a listed text begins or ends with a letter or digit of a script that separates words by
spaces, no such character may be adjacent to it: ``Ann`` is not found in ``Annual``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from privctl.data.packed import byte_lines
from privctl.domain.errors import InputError
from privctl.secrets.scan.kinds.place import SPACED, Occurrence

_SPACED = re.compile(f"[{SPACED}]")
#: Listed texts are looked up by this many of their first characters.
_HEAD = 4


def read_literals(path: Path) -> list[str]:
    """The distinct lines of ``path`` (plain or compressed), stripped and without blank ones.

    Raises InputError for a file without any and for one that is not UTF-8; FileSystemError if it cannot be read.
    """
    texts: dict[str, None] = {}
    for number, line in enumerate(byte_lines(path), start=1):
        try:
            texts[line.decode("utf-8-sig" if number == 1 else "utf-8").strip()] = None
        except UnicodeDecodeError:
            raise InputError(f"{path} line {number} is not UTF-8 text; save the file as UTF-8") from None
    texts.pop("", None)
    if not texts:
        raise InputError(f"{path} lists nothing; expected one text a line")
    return list(texts)


class Literals:
    """Finds many texts at once.

    Each position at which a listed text may begin is a candidate; its next characters select the few texts to compare.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """``texts`` must not be empty strings."""
        heads: dict[str, dict[int, set[str]]] = {}
        firsts: tuple[set[str], set[str]] = (set(), set())
        for text in texts:
            heads.setdefault(text[:_HEAD], {}).setdefault(len(text), set()).add(text)
            firsts[_SPACED.match(text) is None].add(text[0])
        self._heads = {head: sorted(by_length.items()) for head, by_length in heads.items()}
        self._sizes = sorted({len(head) for head in heads})
        self._begin = re.compile("|".join(_begins(firsts)))

    def __call__(self, text: str) -> Iterator[Occurrence]:
        """Every occurrence of a listed text in ``text``, including those inside others."""
        heads = self._heads
        for begin in self._begin.finditer(text):
            start = begin.start()
            for size in self._sizes:
                head = heads.get(text[start : start + size]) if start + size <= len(text) else None
                if head is not None:
                    yield from _ending(text, start, head)


def _begins(firsts: tuple[set[str], set[str]]) -> Iterator[str]:
    for border, signs in zip((f"(?<![{SPACED}])", ""), firsts, strict=True):
        if signs:
            yield f"{border}[{''.join(map(re.escape, sorted(signs)))}]"


def _ending(text: str, start: int, by_length: list[tuple[int, set[str]]]) -> Iterator[Occurrence]:
    for length, values in by_length:
        end = start + length
        value = text[start:end]
        if value in values and not (_SPACED.match(value[-1]) and _SPACED.match(text, end)):
            yield Occurrence(start, end, value, value)
