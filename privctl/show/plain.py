"""Escaping of untrusted text: no control characters, and no commands to a terminal or a CI runner.

GitHub's runner executes lines that begin with ``::``, after spaces or not, and ``##[`` anywhere; Azure's and TeamCity's
execute ``##vso[`` and ``##teamcity[``. GitLab's and terminals interpret control characters.
"""

from __future__ import annotations

import re
import unicodedata

_LONGEST = 500
#: Most characters of one text on a page.
_PAGE = 600
#: Characters that change how the text around them is read, or that XML does not allow.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_RUNNER = re.compile(r"##(?=(?:vso|teamcity)?\[)")
#: At the start of any word, since a line may be broken there.
_WORD = re.compile(r"(?:(?<=\s)|^)::+")
#: What JSON allows unescaped but a terminal or runner would interpret.
_IN_JSON = re.compile(r"[^\x20-\x7e\n]|#(?=#(?:vso|teamcity)?\[)")


def plain(text: str) -> str:
    """``text`` on one line with invisible characters escaped, cut after 500 characters."""
    return escape_hidden(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def escape_hidden(text: str) -> str:
    """As ``plain``, but not cut."""
    if not text.isprintable():
        text = "".join(_escape(c) for c in text)
    return no_command(text)


def clean(text: str, limit: int = _PAGE) -> str:
    """``text`` for a page, cut to ``limit`` characters, with line breaks kept.

    Invisible characters, and those that change the reading direction, are escaped.
    """
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(
            letter if letter == "\n" or unicodedata.category(letter) not in _HIDDEN else f"\\u{ord(letter):04x}"
            for letter in cut
        )
    return no_command(cut)


def no_command(text: str) -> str:
    """``text`` with commands to CI runners broken up, also if the text is wrapped later."""
    return _WORD.sub(lambda colons: " ".join(colons[0]), _RUNNER.sub("## ", text))


def json_text(text: str) -> str:
    """Valid JSON with the same values that is safe on a terminal or in a runner's log."""
    return _IN_JSON.sub(lambda match: _in_json(match[0]), text)


def _escape(character: str) -> str:
    # Control, format (bidirectional ones among them), surrogate, private, unassigned; separators but spaces.
    if character.isprintable():
        return character
    if character.isspace() and character not in "\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _in_json(character: str) -> str:
    if character.isprintable() and character != "#":
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
