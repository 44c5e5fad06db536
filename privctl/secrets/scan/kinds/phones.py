"""Phone numbers in common notations.

- international: ``+49 30 1234567``, ``0044 (0)20 7946 0958``; lengths by country if known, else by E.164;
- North American: ``(408) 247-8880``, ``408.247.8880``, ``1-408-247-8880``; the key is ``+1`` and ten digits;
- national with a leading zero and groups: ``020 7946 0958``, ``030/1234567``, ``06.12.34.56.78``, ``(02) 9876 5432``;
- any 7 to 15 digits after a word such as *phone*, *tel*, *call*, *mobile*, *fax*, *my number*.

Dates, times, IP addresses, decimal numbers and bare digits without such a word are excluded. A national number is not
merged with its international form, since the text does not say which country it is in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from privctl.secrets.scan.kinds.place import DASHES, SPACES, Occurrence, without_overlaps

_BETWEEN = rf"[./{SPACES}{DASHES}]"
_ENOUGH = re.compile(rf"\d(?:[()./{SPACES}{DASHES}]{{0,3}}\d){{6,}}", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)

#: Country code -> most digits after it, by ITU-T E.164 and national plans; for other codes, 15 in total.
_MOST_NATIONAL = {
    code: most
    for most, codes in {
        8: "45 47 65 852 853 507 506 503 502 216 968 973 974 965 371 370 372 509",
        9: "33 34 41 31 32 46 48 61 30 40 420 421 353 351 380 971 972 966 961 962 254 255 256 27 593 51 56 886 94 212",
        10: "1 7 90 91 92 44 20 52 57 58 63 66 84 64 60 82 359 385 386 234 880 964 98",
        11: "86 55 39 81 49 43 54",
        12: "62 358",
    }.items()
    for code in codes.split()
}  # fmt: skip
_LEAST, _MOST = 7, 15
_MOST_TRUNK = 12

_INTERNATIONAL = re.compile(
    rf"(?<![0-9A-Za-z+])(?:\+|(?<!\d{_BETWEEN})00)[ (]{{0,2}}[1-9](?:\)?{_BETWEEN}{{0,2}}\(?\d){{6,18}}(?!\d)", re.ASCII
)
_AMERICAN = re.compile(
    rf"(?<![0-9A-Za-z+])(?<!\d{_BETWEEN})(?:1[.{SPACES}{DASHES}])?"
    rf"(?:\(([2-9]\d\d)\)[{SPACES}{DASHES}]?|([2-9]\d\d){_BETWEEN})([2-9]\d\d)([.{SPACES}{DASHES}])(\d{{4}})"
    rf"(?![0-9A-Za-z])(?![./{DASHES}]\d)",
    re.ASCII,
)
_TRUNK = re.compile(
    rf"(?<![0-9A-Za-z+])(?<!\d{_BETWEEN})"
    rf"(?:\(0[1-9]\d{{0,4}}\)[{SPACES}]?|0[1-9]\d{{0,4}}{_BETWEEN})\d{{2,8}}(?:{_BETWEEN}\d{{2,8}}){{0,4}}(?![0-9A-Za-z])",
    re.ASCII,
)
_LOOSE = re.compile(
    rf"(?<![0-9A-Za-z])(?<!\d[.,:])\(?\d(?:(?:\)?{_BETWEEN}?\(?)\d){{6,14}}(?![0-9A-Za-z]|[.,:/{DASHES}]\d)", re.ASCII
)
_ANOTHER = re.compile(rf"[{SPACES}]\d", re.ASCII)
_CALLED = re.compile(
    r"(?<![a-z])(?:tel|(?:tele|cell)?phone[ _]?(?:no|nr|number)?|telefon|téléphone|telefono|teléfono|telefone|mobile|"
    r"mobil|móvil|cell|handy|fax|call|dial|ring|sms|whatsapp|hotline|contact(?:ing)?|reach(?:ed)?|"
    r"(?:my|your|his|her|its|their|our) (?:number|no|nr))(?![a-z])[^0-9\n+]{0,24}$"
    r"|(电话|電話|手机|手機|携帯|전화|тел|телефон)[^0-9\n+]{0,12}$",
    re.IGNORECASE,
)
#: Groupings of North American numbers, without and with the leading 1.
_AMERICAN_SHORT = ((10,), (3, 7), (3, 3, 4), (6, 4))
_AMERICAN_LONG = ((11,), (1, 10), (1, 3, 7), (1, 3, 3, 4))
_DATE = re.compile(
    rf"(?:19|20)\d\d(?:({_BETWEEN})(?:0?[1-9]|1[0-2])\1(?:[0-2]?\d|3[01])|(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01]))(?!\d)"
    rf"|[0-3]?\d({_BETWEEN})[0-3]?\d\2(?:(?:19|20)\d\d)(?!\d)",
    re.ASCII,
)


def find(text: str) -> list[Occurrence]:
    """The phone numbers in ``text``."""
    if _ENOUGH.search(text) is None:
        return []
    finders = (_international, _american, _trunk, _find_announced)
    return without_overlaps((occurrence for finder in finders for occurrence in finder(text)), len(text))


def _international(text: str) -> Iterator[Occurrence]:
    for match in _INTERNATIONAL.finditer(text):
        body = match[0].replace("(0)", "   ")
        plus = body[0] == "+"
        groups = list(_DIGITS.finditer(body, 1 if plus else 2))
        # The country code may be in one group with the following digits.
        joined = "".join(group[0] for group in groups)
        code = next((joined[:n] for n in (3, 2, 1) if joined[:n] in _MOST_NATIONAL), "")
        if not plus and (not code or len(groups) < 2):
            continue  # as likely to be some number with leading zeros
        most = _MOST_NATIONAL.get(code, _MOST - 3) + (len(code) or 3)
        used_groups = _groups_that_fit([group[0] for group in groups], most)
        number = "".join(group[0] for group in groups[:used_groups])
        if _LEAST < len(number) <= most and (code != "1" or _is_american(number)):
            end = match.start() + groups[used_groups - 1].end()
            yield Occurrence(match.start(), end, f"+{number}", text[match.start() : end])


def _american(text: str) -> Iterator[Occurrence]:
    for match in _AMERICAN.finditer(text):
        number = f"1{match[1] or match[2]}{match[3]}{match[5]}"
        # Three groups in a longer sequence of numbers are not a phone number.
        if match[0].replace(" ", "").isdigit() and _ANOTHER.match(text, match.end()):
            continue
        if _is_american(number):
            yield Occurrence(match.start(), match.end(), f"+{number}", match[0])


def _is_american(number: str) -> bool:
    """Whether ``number`` is 1, an area code and seven digits, with no service code such as 911."""
    return len(number) == 11 and min(number[1], number[4]) > "1" and "11" not in (number[2:4], number[5:7])


def _trunk(text: str) -> Iterator[Occurrence]:
    for match in _TRUNK.finditer(text):
        groups = list(_DIGITS.finditer(match[0]))
        digits = [group[0] for group in groups]
        in_pairs = all(len(group) == 2 for group in digits)  # as ten digits are written in France
        used_groups = min(5, len(digits)) if in_pairs else _groups_that_fit(digits, _MOST_TRUNK)
        number, sizes = "".join(digits[:used_groups]), [len(group) for group in digits[:used_groups]]
        ids = len(sizes) > 2 and set(sizes) == {4}
        machine = len(sizes) == 4 and max(sizes) <= 3 and "." in match[0]
        if not 9 <= len(number) <= _MOST_TRUNK or ids or machine or _DATE.match(match[0]):
            continue
        end = match.start() + groups[used_groups - 1].end()
        yield Occurrence(match.start(), end, number, text[match.start() : end])


def _find_announced(text: str) -> Iterator[Occurrence]:
    for match in _LOOSE.finditer(text):
        start = match.start()
        called = _CALLED.search(text, max(0, start - 48), start)
        if called is None or _DATE.match(match[0]):
            continue
        number = "".join(_DIGITS.findall(match[0]))
        if not _LEAST <= len(number) <= _MOST:
            continue
        sizes = tuple(map(len, _DIGITS.findall(match[0])))
        american = number if sizes in _AMERICAN_LONG else f"1{number}"
        is_american = (
            called[1] is None
            and sizes in _AMERICAN_SHORT + _AMERICAN_LONG
            and american[0] == "1"
            and _is_american(american)
        )
        yield Occurrence(start, match.end(), f"+{american}" if is_american else number, match[0])


def _groups_that_fit(groups: Sequence[str], most: int) -> int:
    """The largest number of leading ``groups`` with at most ``most`` digits in total; at least 1."""
    total, used_groups = len(groups[0]), 1
    while used_groups < len(groups) and total + len(groups[used_groups]) <= most:
        total += len(groups[used_groups])
        used_groups += 1
    return used_groups
