"""The format of a canary: the alphabet of its secret, and the words around it."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.errors import CommandError

DIGITS = tuple("0123456789")
_SLOT = re.compile(r"\{(digits|letters|hex):(\d{1,4})\}")
_ALPHABETS = {
    "digits": DIGITS,
    "letters": tuple("abcdefghijklmnopqrstuvwxyz"),
    "hex": tuple("0123456789abcdef"),
}
#: The maximum length of a secret, in pieces.
LONGEST = 1000
#: The words before a secret if neither a template nor a prefix provides them.
_LEADS = {"digits": "The secret number is ", "tokens": "The secret words are "}


class SecretAlphabet(StrEnum):
    """How secrets are made: random digits, random single-token words, or the slot of a template."""

    DIGITS = "digits"
    TOKENS = "tokens"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryFormat:
    """A family of canaries: ``length`` independent uniform pieces of ``alphabet``, joined by ``joiner``.

    ``before`` and ``after`` are the fixed words around the secret. ``space`` is the number of possible secrets. Raises
    ValueError for inconsistent values.
    """

    kind: SecretAlphabet
    before: str
    after: str
    alphabet: tuple[str, ...]
    joiner: str
    length: int
    space: int

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LONGEST:
            raise ValueError(f"length is {self.length}; it must lie between 1 and {LONGEST}")
        if len(set(self.alphabet)) != len(self.alphabet) or len(self.alphabet) < 2 or not all(self.alphabet):
            raise ValueError("alphabet must hold at least two pieces, each once and none empty")
        if self.space != len(self.alphabet) ** self.length:
            raise ValueError(f"space is {self.space}; it must be {len(self.alphabet)} ** {self.length}")

    @property
    def bits(self) -> float:
        """log2 of ``space``."""
        return self.length * math.log2(len(self.alphabet))

    def draw(self, source: random.Random) -> str:
        """A uniformly random secret."""
        return self.joiner.join(source.choices(self.alphabet, k=self.length))


def format_of(
    kind: SecretAlphabet, alphabet: tuple[str, ...], length: int, *, before: str = "", after: str = ""
) -> CanaryFormat:
    """A format and the size of its space; words are joined by spaces. Raises CommandError for an invalid length."""
    if not 1 <= length <= LONGEST:
        raise CommandError(f"--length is {length}; a secret has 1 to {LONGEST} pieces")
    return CanaryFormat(
        kind=kind,
        before=before,
        after=after,
        alphabet=alphabet,
        joiner=" " if kind is SecretAlphabet.TOKENS else "",
        length=length,
        space=len(alphabet) ** length,
    )


def lead(kind: SecretAlphabet) -> str:
    """The default words before a secret."""
    return _LEADS[kind]


def parse_template(text: str) -> CanaryFormat:
    """The format of a template such as ``my card number is {digits:9}``; raises CommandError unless it has one slot."""
    slots = list(_SLOT.finditer(text))
    if len(slots) != 1:
        raise CommandError(
            f"--template {text!r} has {len(slots)} slots; give it one: "
            "{digits:9}, {letters:8} or {hex:16}, with any number"
        )
    (slot,) = slots
    name, length = slot.groups()
    before, after = text[: slot.start()], text[slot.end() :]
    return format_of(SecretAlphabet.TEMPLATE, _ALPHABETS[name], int(length), before=before, after=after)
