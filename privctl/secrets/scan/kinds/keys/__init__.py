"""Keys, tokens and passwords: known formats, and random-looking strings after words such as *token*."""

from __future__ import annotations

from itertools import chain

from privctl.secrets.scan.kinds.keys import beside_words, formats
from privctl.secrets.scan.kinds.place import Occurrence, without_overlaps


def find(text: str) -> list[Occurrence]:
    """The keys, tokens and passwords in ``text``; those of a known format are not found again as random strings."""
    return without_overlaps(chain(formats.find(text), beside_words.find(text)), len(text))
