"""Text of any origin made harmless: no control character, no command to a terminal or to a CI's runner.

GitHub's runner obeys a line that begins with ``::``, blanks before it or not, and ``##[`` anywhere; Azure's and
TeamCity's obey ``##vso[`` and ``##teamcity[``. GitLab's and terminals obey control characters.
"""

from __future__ import annotations

import re
import unicodedata

_LONGEST = 500
#: Letters of one text that a page shows.
_PAGE = 600
#: Characters that change how the text around them is read, or that XML does not allow.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_RUNNER = re.compile(r"##(?=(?:vso|teamcity)?\[)")
#: At the start of any word, since a line may be folded there.
_WORD = re.compile(r"(?:(?<=\s)|^)::+")
#: What a JSON text may hold unescaped and a terminal or runner would still obey.
_IN_JSON = re.compile(r"[^\x20-\x7e\n]|#(?=#(?:vso|teamcity)?\[)")


def plain(text: str) -> str:
    """``text`` on one line, what cannot be seen written as an escape, and cut where it is absurdly long."""
    return escape_hidden(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def escape_hidden(text: str) -> str:
    """As ``plain``, however long; text that is harmless already stays as it is."""
    if not text.isprintable():
        text = "".join(_escape(c) for c in text)
    return no_command(text)


def clean(text: str, limit: int = _PAGE) -> str:
    """``text`` for a page, its line breaks kept: what is invisible or turns the reading direction is made visible.

    Cut where it is absurdly long.
    """
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(
            letter if letter == "\n" or unicodedata.category(letter) not in _HIDDEN else f"\\u{ord(letter):04x}"
            for letter in cut
        )
    return no_command(cut)


def no_command(text: str) -> str:
    """``text`` without what a runner would obey, wherever its lines are broken."""
    return _WORD.sub(lambda colons: " ".join(colons[0]), _RUNNER.sub("## ", text))


def json_text(text: str) -> str:
    """JSON as it may be shown on a terminal or a runner's log: the same values, what would be obeyed as escapes."""
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
