"""Names of users: the field that holds them, and which of them are spelled alike.

A guarantee for users rests on names, so two spellings of one name are two users. They are made one only where the field
is given as ``fold(FIELD)``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection

_FOLDED = re.compile(r"fold\((.+)\)", re.DOTALL)


def field_of(unit: str) -> str:
    """The field of a record that holds the names where ``unit`` was given: FIELD, or fold(FIELD)."""
    found = _FOLDED.fullmatch(unit)
    return unit if found is None else found[1]


def folded(name: str) -> str:
    """``name`` without what spellings differ in: case, Unicode form (NFKC), spaces at its ends and runs of them."""
    for _ in range(2):  # folding of case may leave a form that is not normal
        name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(name.split())


def spelled_alike(names: Collection[str]) -> int:
    """How many of ``names``, each there once, are equal to another when folded."""
    counts = Counter(map(folded, names))
    return sum(number for number in counts.values() if number > 1)


def alike(number: int, field: str) -> str:
    """What is to be known of ``number`` users of ``field`` whose names are spelled alike, and what to do."""
    return (
        f"{number} names in {field!r} differ from another's only in case, spaces or Unicode form, and count as "
        f"different users; where they are the same, say so by fold({field}) in place of {field}"
    )
