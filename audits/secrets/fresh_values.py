"""Fresh values of a secret's shape: random digits for digits, words for words, with valid check digits.

What an outsider would guess anyway is kept: an e-mail address keeps its domain, a long key the first characters, which
identify its issuer, a card number its first digit, an account number its country. Keeping them makes the attack harder,
never easier.
"""

from __future__ import annotations

import random
import re
import string
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"[^\W\d_]+")
_RUN = re.compile(r"[^\W_]+")
#: What is kept before and after the part that is replaced.
_KEPT_FRONT, _KEPT_BACK = re.compile(r"\w+://[^/]*/?"), re.compile(r"@[^@]*$")
#: A run of letters and digits together is a key from this length on; a longer one keeps its first characters.
_KEY, _LONG_KEY, _MAKER = 8, 16, 4
#: Replacement words are at most this factor more or less frequent; if there are few, the factor is widened.
_SIMILAR, _WIDER = 2, 8
_FEW = 200
_CARD_DIGITS = range(12, 20)
_ACCOUNT = re.compile(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}")


class WordFrequencies:
    """The words of a data set by how often they occur."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._ordered = sorted(counts, key=lambda word: (counts[word], word))
        self._levels = [counts[word] for word in self._ordered]

    def joined(self, other: WordFrequencies) -> WordFrequencies:
        """The words of both data sets."""
        return WordFrequencies(Counter(self._counts) + Counter(other._counts))

    def like(self, word: str, source: random.Random) -> str | None:
        """A random other word about as frequent as ``word``, in its case; None where there is no other."""
        count = max(1, self._counts.get(word, 0))
        for factor in (_SIMILAR, _SIMILAR * _WIDER, None):
            low = 0 if factor is None else bisect_left(self._levels, count / factor)
            high = len(self._levels) if factor is None else bisect_right(self._levels, count * factor)
            if high - low >= _FEW or (factor is None and high > low):
                return in_case_of(word, self._ordered[source.randrange(low, high)])
        return None


def words_of(text: str) -> list[str]:
    """The words of ``text``: its runs of letters."""
    return _WORD.findall(text)


def in_case_of(model: str, word: str) -> str:
    """``word`` in the letter case of ``model``: upper case, capitalised, or lower case."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word[:1].lower() + word[1:]


def fresh_value(value: str, words: WordFrequencies, source: random.Random) -> str | None:
    """A random value of the shape of ``value``; None if there is no other word for one of its words.

    Check digits are valid if those of ``value`` are: Luhn's of cards (ISO/IEC 7812-1), modulo 97 of international
    account numbers (ISO 13616).
    """
    account = _account(value, source)
    if account is not None:
        return account
    front = match.end() if (match := _KEPT_FRONT.match(value)) else 0
    back = match.start() if (match := _KEPT_BACK.search(value)) else len(value)
    inner = value[front:back]
    digits = re.sub(r"\D", "", inner)
    card = len(digits) in _CARD_DIGITS and not _WORD.search(inner) and luhn(digits)
    pieces, end = [], 0
    for run in _RUN.finditer(inner):
        piece = _fresh_run(run.group(), words, source)
        if piece is None:
            return None
        pieces += [inner[end : run.start()], piece]
        end = run.end()
    piece = "".join([*pieces, inner[end:]])
    return value[:front] + (_with_luhn(piece, inner) if card else piece) + value[back:]


def luhn(digits: str) -> bool:
    """Whether the last of ``digits`` checks the others: true of 79927398713."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        number = int(digit) * (1 + place % 2)
        total += number - 9 * (number > 9)
    return total % 10 == 0


def account_valid(text: str) -> bool:
    """Whether ``text``, without spaces, is an international account number: true of GB82WEST12345698765432."""
    return _ACCOUNT.fullmatch(text) is not None and _remainder(text) == 1


def _remainder(account: str) -> int:
    return int("".join(str(int(sign, 36)) for sign in account[4:] + account[:4])) % 97


def _fresh_run(run: str, words: WordFrequencies, source: random.Random) -> str | None:
    if run.isdecimal():
        return _random_character(run[0], source, first=len(run) > 1) + _random_characters(run[1:], source)
    if run.isalpha():
        return words.like(run, source)
    if len(run) < _KEY:
        return _random_characters(run, source)
    kept_characters = _MAKER if len(run) >= _LONG_KEY else 0
    return run[:kept_characters] + _random_characters(run[kept_characters:], source)


def _random_characters(text: str, source: random.Random) -> str:
    return "".join(_random_character(sign, source) for sign in text)


def _random_character(sign: str, source: random.Random, *, first: bool = False) -> str:
    """A random character of the same class; a number's ``first`` digit is 0 exactly if it was 0."""
    if sign.isdecimal():
        if first:
            return sign if sign == "0" else source.choice(string.digits[1:])
        return source.choice(string.digits)
    letters = string.ascii_uppercase if sign.isupper() else string.ascii_lowercase
    return source.choice(letters) if sign.isalpha() else sign


def _with_luhn(candidate: str, original: str) -> str:
    """``candidate`` with the first digit of ``original`` and a valid check digit."""
    places = [i for i, sign in enumerate(candidate) if sign.isdecimal()]
    signs = list(candidate)
    signs[places[0]] = next(sign for sign in original if sign.isdecimal())
    for digit in string.digits:
        signs[places[-1]] = digit
        if luhn("".join(signs[i] for i in places)):
            break
    return "".join(signs)


def _account(value: str, source: random.Random) -> str | None:
    """Another account number in the same country and grouping; None where ``value`` is none."""
    plain = value.replace(" ", "")
    if not account_valid(plain):
        return None
    body = _random_characters(plain[4:], source)
    check = 98 - _remainder(plain[:2] + "00" + body)
    signs = iter(f"{plain[:2]}{check:02d}{body}")
    return "".join(sign if sign == " " else next(signs) for sign in value)
