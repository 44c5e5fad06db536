"""User names: the field that holds them, and which of them are spelled alike.

User-level privacy identifies users by name, so two spellings of one name count as two users. They are merged only if
the field is given as ``fold(FIELD)``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection

_FOLDED = re.compile(r"fold\((.+)\)", re.DOTALL)


def field_of(unit: str) -> str:
    """The field that ``unit`` names, given as FIELD or fold(FIELD)."""
    match = _FOLDED.fullmatch(unit)
    return unit if match is None else match[1]


def folded(name: str) -> str:
    """``name`` case-folded, NFKC-normalized and stripped, with runs of white space reduced to one space."""
    for _ in range(2):  # case folding may leave text that is not normalized
        name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(name.split())


def spelled_alike(names: Collection[str]) -> int:
    """How many of ``names``, which are distinct, equal another of them when folded."""
    counts = Counter(map(folded, names))
    return sum(number for number in counts.values() if number > 1)


def alike(number: int, field: str) -> str:
    """The warning that ``number`` names in ``field`` are spelled alike, with what to do about it."""
    return (
        f"{number} names in {field!r} differ from another's only in case, spaces or Unicode form, and count as "
        f"different users; where they are the same, say so by fold({field}) in place of {field}"
    )
