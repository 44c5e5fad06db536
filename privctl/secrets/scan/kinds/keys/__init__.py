"""Keys, tokens and passwords: formats that are known, and strings that look random beside a word that says so."""

from __future__ import annotations

from itertools import chain

from privctl.secrets.scan.kinds.keys import beside_words, formats
from privctl.secrets.scan.kinds.place import Occurrence, apart


def find(text: str) -> list[Occurrence]:
    """The keys, tokens and passwords in ``text``; one of a known format is not found again as a random string."""
    return apart(chain(formats.find(text), beside_words.find(text)), len(text))
