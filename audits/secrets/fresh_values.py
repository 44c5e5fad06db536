"""Fresh values of a secret's shape: random digits for digits, words for words, with valid check digits.

What an outsider would guess anyway is kept: the domain of an e-mail address, the first characters of a long key, which
identify its issuer, the first digit of a card number, the country of an account number. Keeping them makes the attack
harder, never easier.
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
#: The parts before and after the replaced part that are kept.
_KEPT_FRONT, _KEPT_BACK = re.compile(r"\w+://[^/]*/?"), re.compile(r"@[^@]*$")
#: A run of letters and digits of at least this length is a key; a longer one keeps its first characters.
_KEY, _LONG_KEY, _MAKER = 8, 16, 4
#: Replacement words are at most this factor more or less frequent; if there are few, the factor is increased.
_SIMILAR, _WIDER = 2, 8
_FEW = 200
_CARD_DIGITS = range(12, 20)
_ACCOUNT = re.compile(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}")


class WordFrequencies:
    """The words of a data set with their frequencies."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._ordered = sorted(counts, key=lambda word: (counts[word], word))
        self._levels = [counts[word] for word in self._ordered]

    def joined(self, other: WordFrequencies) -> WordFrequencies:
        """The words of both data sets."""
        return WordFrequencies(Counter(self._counts) + Counter(other._counts))

    def like(self, word: str, source: random.Random) -> str | None:
        """A random word about as frequent as ``word``, in its letter case; None if there are no words."""
        count = max(1, self._counts.get(word, 0))
        for factor in (_SIMILAR, _SIMILAR * _WIDER, None):
            low = 0 if factor is None else bisect_left(self._levels, count / factor)
            high = len(self._levels) if factor is None else bisect_right(self._levels, count * factor)
            if high - low >= _FEW or (factor is None and high > low):
                return in_case_of(word, self._ordered[source.randrange(low, high)])
        return None


def words_of(text: str) -> list[str]:
    """The words of ``text``, which are runs of letters."""
    return _WORD.findall(text)


def in_case_of(model: str, word: str) -> str:
    """``word`` in the letter case of ``model``: upper case, capitalized, or lower case."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word[:1].lower() + word[1:]


def fresh_value(value: str, words: WordFrequencies, source: random.Random) -> str | None:
    """A random value of the shape of ``value``; None if there is no word to replace one of its words.

    Check digits are valid if those of ``value`` are: Luhn's for cards (ISO/IEC 7812-1), modulo 97 for international
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
    """Whether the last of ``digits`` is a valid Luhn check digit, as for 79927398713."""
    total = 0
    for index, digit in enumerate(reversed(digits)):
        number = int(digit) * (1 + index % 2)
        total += number - 9 * (number > 9)
    return total % 10 == 0


def account_valid(text: str) -> bool:
    """Whether ``text``, without spaces, is a valid international account number, such as GB82WEST12345698765432."""
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
    """A random character of the same class; the ``first`` digit of a number is 0 if and only if it was 0."""
    if sign.isdecimal():
        if first:
            return sign if sign == "0" else source.choice(string.digits[1:])
        return source.choice(string.digits)
    letters = string.ascii_uppercase if sign.isupper() else string.ascii_lowercase
    return source.choice(letters) if sign.isalpha() else sign


def _with_luhn(candidate: str, original: str) -> str:
    """``candidate`` with the first digit of ``original`` and a valid check digit."""
    indices = [i for i, sign in enumerate(candidate) if sign.isdecimal()]
    signs = list(candidate)
    signs[indices[0]] = next(sign for sign in original if sign.isdecimal())
    for digit in string.digits:
        signs[indices[-1]] = digit
        if luhn("".join(signs[i] for i in indices)):
            break
    return "".join(signs)


def _account(value: str, source: random.Random) -> str | None:
    """Another account number with the same country and grouping; None if ``value`` is not one."""
    plain = value.replace(" ", "")
    if not account_valid(plain):
        return None
    body = _random_characters(plain[4:], source)
    check = 98 - _remainder(plain[:2] + "00" + body)
    signs = iter(f"{plain[:2]}{check:02d}{body}")
    return "".join(sign if sign == " " else next(signs) for sign in value)
