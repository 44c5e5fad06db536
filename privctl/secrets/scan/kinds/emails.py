"""E-mail addresses: ``ann@example.org``, ``Ann@Example.org``, ``ann (at) example (dot) org``.

Addresses as most providers allow them, not all of RFC 5322: at most 64 letters, digits and ``. _ % + - '`` before the
sign, and a dotted domain with a top level of letters after it. Case is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from privctl.secrets.scan.kinds.place import SPACED, Occurrence

_LONGEST_LOCAL = 64  # RFC 5321, section 4.5.3.1.1
_INNER = r".%+'’\-"
_INNER_END = ".%+'’-"
_SIGN = re.compile(r"[@\[({](?:(?<=@)|\s?[aA][tT]\s?[\])}])")
#: Matched against the reversed text before the sign.
_BACKWARD = re.compile(rf"[{SPACED}{_INNER}]+")
_BACKWARD_ANY = re.compile(rf"[\w{_INNER}]+")
_LABEL = rf"[{SPACED}](?:[{SPACED}\-]{{0,61}}[{SPACED}])?"
_TOP = r"(?:[xX][nN]--[0-9A-Za-z\-]{2,59}|[A-Za-z\u00c0-\u058f]{2,24})(?![0-9A-Za-z_\-])"
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+{_TOP}")
_DOT = r"(?:\.|\s?[\[({]\s?dot\s?[\])}]\s?)"
_AT = r"\s?[\[({]\s?at\s?[\])}]\s?"
_SPELLED = re.compile(
    rf"(?<![{SPACED}])[{SPACED}][{SPACED}%+\-]{{0,63}}(?:{_DOT}[{SPACED}%+\-]{{1,63}}){{0,5}}{_AT}(?:{_LABEL}{_DOT})+{_TOP}",
    re.IGNORECASE,
)
_SPELLED_SIGN = re.compile(rf"({_AT})|{_DOT}", re.IGNORECASE)
#: The path in ``git@host:folder/project``, as scp and git write remote locations.
_REMOTE_PATH = re.compile(r":[\w.~\-]*/[\w.~]")
#: Suffixes of files or systemd units rather than top-level domains.
_NOT_TOP_LEVEL = re.compile(
    r"css|exe|dll|gif|gz|html?|ico|jar|jpe?g|js|json|png|service|socket|svg|tar|tgz|timer|txt|webp|whl|xml|ya?ml"
)


def find(text: str) -> Iterator[Occurrence]:
    """The addresses in ``text``."""
    spelled = False
    for sign in _SIGN.finditer(text):
        if sign[0] == "@":
            yield from _addresses_around(text, sign.start())
        else:
            spelled = True
    if spelled:
        for match in _SPELLED.finditer(text):
            key = _SPELLED_SIGN.sub(lambda match_of_sign: "@" if match_of_sign[1] else ".", match[0]).lower()
            if _is_top_level(key):
                yield Occurrence(match.start(), match.end(), key, match[0])


def _addresses_around(text: str, sign: int) -> Iterator[Occurrence]:
    domain = _DOMAIN.match(text, sign + 1)
    if domain is None or not _is_top_level(domain[0].lower()) or _REMOTE_PATH.match(text, domain.end()):
        return
    before = text[max(0, sign - _LONGEST_LOCAL - 1) : sign][::-1]
    local = _BACKWARD.match(before) or _BACKWARD_ANY.match(before)
    if local is None or local.end() > _LONGEST_LOCAL:
        return
    size = len(local[0].rstrip(_INNER_END))  # without quotes and dots before the address
    if size and text[sign - 1] not in _INNER_END:
        start, end = sign - size, domain.end()
        yield Occurrence(start, end, text[start:end].lower(), text[start:end])


def _is_top_level(domain: str) -> bool:
    return _NOT_TOP_LEVEL.fullmatch(domain.rpartition(".")[2]) is None
