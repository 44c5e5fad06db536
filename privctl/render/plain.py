"""Text from reports of any origin made harmless: no control character, no command to a terminal or CI."""

from __future__ import annotations

import unicodedata

#: Control, format (bidirectional ones among them), surrogate, private, unassigned; separators of lines.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_LONGEST = 500


def plain(text: str) -> str:
    """``text`` on one line, what cannot be seen written as an escape, and cut where it is absurdly long.

    The old form of a CI command, ``##[...]``, is obeyed anywhere in a line, and so is broken up.
    """
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    seen = "".join(_escaped(c) if unicodedata.category(c) in _UNSEEN else c for c in cut)
    return seen.replace("##[", "## [")


def _escaped(character: str) -> str:
    code = ord(character)
    if character in "\n\r\t":
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
