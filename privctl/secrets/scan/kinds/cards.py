"""Payment card numbers: a known prefix with a valid length, a Luhn check digit, and a known grouping of digits.

Prefixes and lengths are those assigned to issuers under ISO/IEC 7812; the check digit is that of its annex B.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from privctl.secrets.scan.kinds.place import DASHES, SPACES, Occurrence

_SIXTEEN_ON = range(16, 20)
#: First and last prefix of a range (of equal length), and the lengths of its numbers.
_ISSUERS: tuple[tuple[str, str, tuple[int, ...] | range], ...] = (
    ("4", "4", (13, 16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),  # Mastercard
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),  # American Express
    ("6011", "6011", _SIXTEEN_ON),  # Discover
    ("644", "649", _SIXTEEN_ON),  # Discover
    ("65", "65", _SIXTEEN_ON),  # Discover, RuPay
    ("300", "305", (14,)),  # Diners Club
    ("36", "36", (14,)),  # Diners Club
    ("38", "39", (14, 16)),  # Diners Club
    ("3528", "3589", _SIXTEEN_ON),  # JCB
    ("62", "62", _SIXTEEN_ON),  # UnionPay
    ("81", "82", (16,)),  # UnionPay, RuPay
    ("60", "60", (16,)),  # RuPay
    ("2200", "2204", _SIXTEEN_ON),  # Mir
    ("5018", "5018", range(13, 20)),  # Maestro, and on
    ("5020", "5020", range(13, 20)),
    ("5038", "5038", range(13, 20)),
    ("5893", "5893", range(13, 20)),
    ("6304", "6304", range(13, 20)),
    ("6759", "6759", range(13, 20)),
    ("6761", "6763", range(13, 20)),
)
#: Known groupings of digits; the same character separates all groups.
_GROUPS = frozenset(
    {(4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (8, 8), (6, 13), (4, 4, 5), (4, 4, 4, 1), (4, 4, 4, 2), (4, 4, 4, 3)}
    | {(4, 4, 4, 4, rest) for rest in (1, 2, 3)}
)
_LONG = re.compile(rf"\d(?:[.{SPACES}{DASHES}]?\d){{12,}}", re.ASCII)
_GROUP = re.compile(r"(?<![0-9A-Za-z])\d+", re.ASCII)
_FRACTION = re.compile(r"[0-9][.,]")
_LETTER = re.compile("[A-Za-z]")
_MOST_GROUPS = 5
_SHORTEST, _LONGEST = 13, 19
_EVEN = str.maketrans("0123456789", "0246813579")  # the digit sum of each digit doubled


def find(text: str) -> Iterator[Occurrence]:
    """The card numbers in ``text``."""
    for run in _LONG.finditer(text):
        groups = list(_GROUP.finditer(text, run.start(), run.end()))
        next_group = 0
        for first in range(len(groups)):
            if first < next_group or _FRACTION.match(text, groups[first].start() - 2):
                continue
            for last in reversed(range(first, min(first + _MOST_GROUPS, len(groups)))):  # the longest first
                occurrence = _card(text, groups[first : last + 1])
                if occurrence is not None and not _LETTER.match(text, occurrence.end):
                    yield occurrence
                    next_group = last + 1
                    break


def _card(text: str, groups: list[re.Match[str]]) -> Occurrence | None:
    """The card number that ``groups`` form together; None if they do not form one."""
    digits = "".join(group[0] for group in groups)
    if not _SHORTEST <= len(digits) <= _LONGEST or not (_is_issued(digits) and _passes_luhn(digits)):
        return None
    if len(groups) > 1:
        between = {text[a.end() : b.start()] for a, b in pairwise(groups)}
        if len(between) > 1 or tuple(len(group[0]) for group in groups) not in _GROUPS:
            return None
    start, end = groups[0].start(), groups[-1].end()
    return Occurrence(start, end, digits, text[start:end])


def _is_issued(digits: str) -> bool:
    return any(first <= digits[: len(first)] <= last and len(digits) in sizes for first, last, sizes in _ISSUERS)


def _passes_luhn(digits: str) -> bool:
    return (sum(map(int, digits[-1::-2])) + sum(map(int, digits[-2::-2].translate(_EVEN)))) % 10 == 0
