"""Random strings and passwords after a word that announces them, such as *key*, *token*, *password*.

A random string begins at most 40 characters after the word, and has at least 16 characters of base64 or its variants:

- hexadecimal with letters and digits: Shannon entropy of its characters at least 3 bits;
- others: at least 3.25 bits, and enough adjacent characters of different classes (lower case, upper case, digit), of
  which identifiers made of words have few: 20 % for digits and one case, 30 % for all three, 45 % without digits.

A password follows its word and ``:``, ``=`` or *is*. It has at least 8 characters, with a letter, a digit, and both
cases or a punctuation mark; entropy at least 2.5 bits. Digests of files and commits are excluded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from privctl.secrets.scan.kinds.place import Occurrence

#: Lower-case parts of the words below, for a quick first test.
_WORDS = ("key", "token", "secret", "pass", "pwd", "credential", "bearer", "auth")
_WORD = re.compile(
    r"(?:key|token|secret|passw(?:or)?d|passphrase|passcode|pwd|credentials?|bearer|auth)", re.IGNORECASE
)
_REACH = 40
_RUN = re.compile(r"(?<![0-9A-Za-z+/_~-])[0-9A-Za-z+/_~-]{16,512}={0,2}(?![0-9A-Za-z+/_~-])")
_DIGEST = re.compile(
    r"\b(?:commit|sha-?\d*|md5|blake\w*|hash\w*|checksum|digest|revision|fingerprint|uuid|guid|etag|crc\w*)\b",
    re.IGNORECASE,
)
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX_BITS, _MIXED_BITS, _PASSWORD_BITS = 3.0, 3.25, 2.5
_CHANGES = {"0A": 0.2, "0a": 0.2, "0Aa": 0.3, "Aa": 0.45}
#: The farthest that a run which begins within reach can extend, plus one character.
_FAR = 560

_GIVEN = re.compile(
    r"(?:passw(?:or)?d|passphrase|passcode|pwd|secret)[\"'`]?(?:\s{0,3}(?::=|=>|[:=])\s{0,3}|\s{1,3}is:?\s{1,3})"
    r"([\"'`]?)([^\s\"'`<>\u2e80-\uffef]{8,64})",
    re.IGNORECASE,
)
_NOT_GIVEN = re.compile(r"[<${\[%*(]|\w+://|\w+[(\[]")


def find(text: str) -> Iterator[Occurrence]:
    """The random strings and passwords in ``text``."""
    small = text.lower()
    for word in _WORDS:
        if word in small:
            break
    else:
        return
    yield from _passwords(text)
    reached = 0
    for match in _WORD.finditer(text):
        end = match.end()
        for run in _RUN.finditer(text, max(end, reached), end + _FAR):
            if run.start() > end + _REACH:
                break
            reached = run.end()
            if looks_random(run[0]) and not _DIGEST.search(text, end, run.start()):
                yield Occurrence(run.start(), run.end(), run[0], run[0])


def _passwords(text: str) -> Iterator[Occurrence]:
    for match in _GIVEN.finditer(text):
        value = match[2] if match[1] else match[2].rstrip(".,;:!?)]}")
        if len(value) >= 8 and not _NOT_GIVEN.match(value) and _is_password(value):
            yield Occurrence(match.start(2), match.start(2) + len(value), value, value)


def looks_random(run: str) -> bool:
    """Whether a string of base64 characters looks random rather than written by a person."""
    if _HEX.fullmatch(run):
        return not run.isdigit() and any(map(str.isdigit, run)) and entropy(run) >= _HEX_BITS
    if entropy(run) < _MIXED_BITS:
        return False
    kinds = [_key_kind(sign) for sign in run if sign.isalnum()]
    changes = sum(a != b for a, b in pairwise(kinds)) / (len(run) - 1)
    return changes >= _CHANGES.get("".join(sorted(set(kinds))), math.inf)


def _is_password(value: str) -> bool:
    lower, upper = any(map(str.islower, value)), any(map(str.isupper, value))
    sign = not value.isalnum()
    return (
        any(map(str.isdigit, value))
        and (lower or upper)
        and ((lower and upper) or sign)
        and entropy(value) >= _PASSWORD_BITS
    )


def _key_kind(sign: str) -> str:
    return "0" if sign.isdigit() else "A" if sign.isupper() else "a"


def entropy(text: str) -> float:
    """Shannon entropy of the character frequencies of ``text``, in bits per character."""
    size = len(text)
    return -sum(n / size * math.log2(n / size) for n in Counter(text).values())
