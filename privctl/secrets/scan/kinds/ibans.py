"""International bank account numbers (ISO 13616): country, length and check digits (mod 97, ISO 7064) must agree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from privctl.secrets.scan.kinds.place import DASHES, SPACES, Occurrence

#: Country -> length of its numbers, from SWIFT's registry for ISO 13616.
LENGTHS = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip
_BEGIN = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]{2}[0-9]{2}")
_REST = re.compile(rf"(?:[{SPACES}{DASHES}]?[0-9A-Za-z]){{11,32}}")
_MORE = re.compile("[0-9A-Za-z]")
_BETWEEN = re.compile(rf"[{SPACES}{DASHES}]+")


def find(text: str) -> Iterator[Occurrence]:
    """The account numbers in ``text``."""
    for begin in _BEGIN.finditer(text):
        length = LENGTHS.get(begin[0][:2].upper())
        tail = None if length is None else _REST.match(text, begin.end())
        if length is None or tail is None:
            continue
        end = _end(text, begin.end(), length - len(begin[0]), tail.end())
        if end is None or _MORE.match(text, end):
            continue
        value = text[begin.start() : end]
        key = _BETWEEN.sub("", value).upper()
        if _passes_check(key):
            yield Occurrence(begin.start(), end, key, value)


def _end(text: str, start: int, count: int, stop: int) -> int | None:
    """The position after the ``count``-th letter or digit from ``start``; None if ``stop`` comes first."""
    for position in range(start, stop):
        count -= text[position].isalnum()
        if not count:
            return position + 1
    return None


def _passes_check(number: str) -> bool:
    rotated = number[4:] + number[:4]
    return int("".join(str(int(sign, 36)) for sign in rotated)) % 97 == 1
