"""Identifiers in clinical texts: national numbers, medical record numbers and dates of birth.

- US social security numbers: ``078-05-1126``, or bare digits after a word such as *SSN*. Excluded are areas, groups and
  serials that the Social Security Administration never assigns (POMS RM 10201.035), and three well-known examples.
- NHS numbers: ten digits after *NHS*, with the modulo 11 check digit of the NHS Data Dictionary.
- Medical record numbers: letters and digits after *MRN*, *patient ID*, *medical record number* and the like.
- Dates of birth: a valid date after *born*, *DOB*, *date of birth* and the like.

Between the word and the identifier there may be a few characters (at most 24), none of them a digit or a line end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from privctl.secrets.scan.kinds.place import DASHES, SPACES, Occurrence

_BETWEEN = re.compile(rf"[.{SPACES}{DASHES}]")

_SSN = re.compile(
    rf"(?<![0-9A-Za-z])(?<!\d[.,/{DASHES}])(\d{{3}})([{SPACES}{DASHES}]?)(\d\d)\2(\d{{4}})"
    rf"(?![0-9A-Za-z]|[.,/{DASHES}]\d)",
    re.ASCII,
)
_SSN_WORD = re.compile(r"(?<![A-Za-z])(?:SSN|SS#|social\s+security)(?![A-Za-z]{3})[^0-9\n]{0,24}$", re.IGNORECASE)
#: A number that was printed in wallets, one from an advertisement, and the usual placeholder.
_EXAMPLES = frozenset({"078051120", "219099999", "123456789"})

_NHS = re.compile(
    rf"(?<![A-Za-z])NHS(?![A-Za-z])[^0-9\n]{{0,24}}?(?<![0-9A-Za-z])(\d{{3}}([{SPACES}{DASHES}]?)\d{{3}}\2\d{{4}})"
    rf"(?![0-9A-Za-z]|[.,/{DASHES}]\d)",
    re.IGNORECASE | re.ASCII,
)

_RECORD = re.compile(
    r"(?<![A-Za-z])(?:MRN|MR#|(?:medical|health|patient|hospital|chart)(?:'s)?[ _-](?:record[ _-])?"
    r"(?:numbers?|no\.?|nr\.?|id|identifier|#))(?![A-Za-z])"
    rf"[{SPACES}#:=.\"'()\[\]|]{{0,6}}(?:is[{SPACES}])?"
    rf"(?P<value>[A-Za-z]{{0,4}}[{DASHES}]?\d(?:[{DASHES}]?[0-9A-Za-z]){{3,14}})(?![0-9A-Za-z])",
    re.IGNORECASE | re.ASCII,
)

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_BIRTH = re.compile(
    r"(?<![A-Za-z])(?:d\.?o\.?b\.?|(?:date|day|year)[ _]of[ _]birth|birth[ _-]?da(?:te|y)|born|geb\.|geboren|"
    r"geburtsdatum|née?[ ]le|date[ ]de[ ]naissance|fecha[ ]de[ ]nacimiento)(?![A-Za-z])",
    re.IGNORECASE,
)
_TO_DIGIT = re.compile(r"[^0-9\n]{0,24}(?<![0-9A-Za-z])(?=[0-9])")
_DATES = (
    re.compile(r"(?P<y>(?:19|20)\d\d)([-/.])(?P<m>\d\d?)\2(?P<d>\d\d?)(?!\d)", re.ASCII),
    re.compile(r"(?P<a>\d\d?)([-/. ])(?P<b>\d\d?)\2(?P<y>(?:19|20)\d\d|\d\d)(?!\d)", re.ASCII),
    re.compile(
        rf"(?P<d>\d\d?)(?:st|nd|rd|th)?[ .-]{{1,2}}(?:of )?(?P<month>{_MONTH})[ ,-]{{1,2}}"
        r"(?P<y>(?:19|20)\d\d|\d\d)(?!\d)",
        re.IGNORECASE | re.ASCII,
    ),
)
_BY_MONTH = re.compile(
    rf"(?P<month>{_MONTH}) (?P<d>\d\d?)(?:st|nd|rd|th)?,? (?P<y>(?:19|20)\d\d)(?!\d)", re.IGNORECASE | re.ASCII
)
_MONTH_BEGINS = re.compile(rf"(?<![A-Za-z]){_MONTH} \d", re.IGNORECASE)


def find_ssn(text: str) -> Iterator[Occurrence]:
    """The social security numbers in ``text``: those in three groups, and nine digits after a word."""
    for match in _SSN.finditer(text):
        area, sign, group, serial = match.groups()
        digits = area + group + serial
        assigned = area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"
        if not assigned or digits in _EXAMPLES:
            continue
        # Bare digits and groups separated by spaces are common in tables, so they need a word.
        separated = bool(sign) and not sign.isspace()
        if not separated and _SSN_WORD.search(text, max(0, match.start() - 48), match.start()) is None:
            continue
        yield Occurrence(match.start(), match.end(), digits, match[0])


def find_nhs(text: str) -> Iterator[Occurrence]:
    """The NHS numbers in ``text``."""
    for match in _NHS.finditer(text):
        digits = _BETWEEN.sub("", match[1])
        if _passes_nhs_check(digits):
            yield Occurrence(match.start(1), match.end(1), digits, match[1])


def _passes_nhs_check(digits: str) -> bool:
    """Whether the tenth digit is the modulo 11 check digit of the others, weighted 10 to 2; a check of 10 fails."""
    check = 11 - sum(int(sign) * weight for sign, weight in zip(digits[:9], range(10, 1, -1), strict=True)) % 11
    return check % 11 == int(digits[9]) and len(set(digits)) > 1


def find_records(text: str) -> Iterator[Occurrence]:
    """The medical record numbers in ``text``, each after its word and with at least four digits."""
    for match in _RECORD.finditer(text):
        value = match["value"]
        if sum(sign.isdigit() for sign in value) >= 4:
            key = _BETWEEN.sub("", value).upper()
            yield Occurrence(match.start("value"), match.end("value"), key, value)


def find_births(text: str) -> Iterator[Occurrence]:
    """The dates of birth in ``text``.

    Different ways of writing a day have the same key. If day and month could be swapped, the key keeps their order, and
    if there is no century, it keeps the two digits of the year.
    """
    for word in _BIRTH.finditer(text):
        near = _TO_DIGIT.match(text, word.end())
        if near is None:
            continue
        date = next((match for form in _DATES if (match := form.match(text, near.end()))), None)
        if date is None:
            begins = _MONTH_BEGINS.search(text, word.end(), near.end() + 1)
            date = None if begins is None else _BY_MONTH.match(text, begins.start())
        key = None if date is None else _day(date.groupdict())
        if date is not None and key is not None:
            yield Occurrence(date.start(), date.end(), key, date[0])


def _day(parts: dict[str, str]) -> str | None:
    """The key of a date; None for a day that does not exist."""
    year = int(parts["y"])
    whole = year if year > 99 else 2000 + year  # a leap year is one in either century but 1900
    if "a" in parts:
        first, second = int(parts["a"]), int(parts["b"])
        days = {(month, day) for day, month in ((first, second), (second, first)) if _is_day(whole, month, day)}
    else:
        month = _MONTHS[parts["month"][:3].lower()] if "month" in parts else int(parts["m"])
        first, second = int(parts["d"]), month
        days = {(month, first)} if _is_day(whole, month, first) else set()
    if not days:
        return None
    written = f"{first:02d}/{second:02d}" if len(days) > 1 else "{:02d}-{:02d}".format(*min(days))
    return f"{parts['y']}-{written}"


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        return date(year, month, day) is not None
    except ValueError:
        return False
