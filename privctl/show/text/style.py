"""Text for the terminal: tables as wide as it is, paragraphs, numbers, and colour where it has a meaning.

Colour is ANSI codes, which ``click.echo`` leaves out where the output is no terminal or the user wants none. The tables
are our own: in a pipe or a file every row is one line, whatever its length, and rich, which progress bars use, takes
30 ms to import, as long as a tenth of a short command.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum

from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, Status
from privctl.domain.shown import upward
from privctl.domain.strength import Severity, severity
from privctl.domain.verdict import Outcome
from privctl.show.plain import escape_hidden

#: The longest line of a paragraph, where the terminal is no narrower.
WIDTH = 80
#: What a table is never folded below.
_LEAST = 40
#: Columns between two cells.
_GAP = 2
#: What a column of a table is never made narrower than.
_NARROW = 8
_CODES = re.compile("\x1b\\[[0-9;]*m")
#: What ``coloured`` writes; any other code came with somebody's text.
_OWN = re.compile("\x1b\\[(3[123])m([^\x1b]*)\x1b\\[0m")


class Colour(StrEnum):
    """What a colour says: all is well, beware, something is wrong."""

    GOOD = "32"
    CARE = "33"
    BAD = "31"


_OF_STATUS = {
    Status.PROVED: Colour.GOOD,
    Status.CONDITIONAL: Colour.CARE,
    Status.CLAIMED: Colour.CARE,
    Status.REFUTED: Colour.BAD,
    Status.VOID: Colour.BAD,
}
_OF_SEVERITY = {
    Severity.GOOD: Colour.GOOD,
    Severity.FAIR: Colour.CARE,
    Severity.WEAK: Colour.CARE,
    Severity.BAD: Colour.BAD,
    Severity.VOID: Colour.BAD,
    Severity.NONE: Colour.CARE,
}
_OF_OUTCOME = {
    Outcome.PROVED: Colour.GOOD,
    Outcome.CONSISTENT: Colour.GOOD,
    Outcome.INCONCLUSIVE: Colour.CARE,
    Outcome.REFUTED: Colour.BAD,
}


def columns() -> int | None:
    """The columns of the terminal, or what COLUMNS says; None where standard output is neither."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return max(_LEAST, int(asked))
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return max(_LEAST, shutil.get_terminal_size().columns)


def coloured(text: str, colour: Colour) -> str:
    """``text`` in ``colour``."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def status_word(status: Status) -> str:
    """A guarantee's status, coloured."""
    return coloured(str(status), _OF_STATUS[status])


def graded_word(guarantee: Guarantee) -> str:
    """A guarantee's status, coloured by what the guarantee is worth; for what is no noise on finished weights."""
    return coloured(str(guarantee.status), _OF_SEVERITY[severity(guarantee, None)])


def outcome_word(outcome: Outcome) -> str:
    """A verdict's outcome, coloured."""
    return coloured(str(outcome), _OF_OUTCOME[outcome])


def plain(text: str) -> str:
    """``text`` without colour."""
    return _CODES.sub("", text)


def _harmless(text: str) -> str:
    """``text`` with its own colours and no other control character, on one line."""
    if "\x1b" not in text:
        return escape_hidden(text)
    parts, last = [], 0
    for match in _OWN.finditer(text):
        parts += [escape_hidden(text[last : match.start()]), f"\x1b[{match[1]}m{escape_hidden(match[2])}\x1b[0m"]
        last = match.end()
    return "".join((*parts, escape_hidden(text[last:])))


def paragraph(text: str, *, indent: int = 0, hanging: int | None = None) -> str:
    """``text``, made harmless, in lines of at most 80 columns or the terminal's, ending in a newline.

    Further lines are ``hanging`` columns in, by default two more than ``indent``. A longer word has a line of its own.
    """
    further = indent + 2 if hanging is None else hanging
    lines = _fold(_harmless(text), min(WIDTH, columns() or WIDTH), " " * indent, " " * further)
    return "\n".join(map(str.rstrip, lines)) + "\n"


def notes(warnings: Iterable[str]) -> str:
    """What a reader should know beside the result, a paragraph each."""
    return "".join(paragraph(f"note: {warning}") for warning in warnings)


def assumption_lines(assumptions: Iterable[Assumption], *, verbose: bool) -> str:
    """What a guarantee rests on, a paragraph each; without ``verbose`` what was enforced is only counted."""
    every = list(assumptions)
    shown = [a for a in every if verbose or a.state is not AssumptionState.ENFORCED]
    text = "".join(paragraph(f"{a.state}: {a.statement}", indent=2) for a in shown)
    hidden = len(every) - len(shown)
    if hidden:
        are = "was" if hidden == 1 else "were"
        more = " more" if shown else ""
        text += paragraph(f"({hidden}{more} that {are} enforced: --verbose, or the report)", indent=2)
    return text


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by width, numbers to the right, ending in a newline.

    Where a line would pass the terminal's width, the cells of the widest columns of text go on below; without a
    terminal every row is one line.
    """
    cells = [list(headings), *[[_harmless(cell) for cell in row] for row in rows]]
    right = [all(_numeric(row[i]) for row in cells[1:]) for i in range(len(headings))]
    widths = _widths(cells, right, columns())
    lines = []
    for row in cells:
        folded = [_fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for k in range(max(map(len, folded))):
            parts = [part[k] if k < len(part) else "" for part in folded]
            padded = (_pad(p, w, r) for p, w, r in zip(parts, widths, right, strict=True))
            lines.append((" " * _GAP).join(padded).rstrip())
    rule = (" " * _GAP).join("-" * width for width in widths)
    lines.insert(max(len(_fold(cell, width)) for cell, width in zip(cells[0], widths, strict=True)), rule)
    return "\n".join(lines) + "\n"


def _widths(cells: Sequence[Sequence[str]], right: Sequence[bool], most: int | None) -> list[int]:
    """Of each column: its widest cell, but for columns of text that must be narrower for ``most`` columns to do.

    No column is narrower than its longest word.
    """
    widths = [max(len(plain(row[i])) for row in cells) for i in range(len(cells[0]))]
    words = [max((len(w) for row in cells for w in plain(row[i]).split()), default=0) for i in range(len(widths))]
    least = [
        min(width, word if number else max(_NARROW, word))
        for width, word, number in zip(widths, words, right, strict=True)
    ]
    while most is not None and sum(widths) + _GAP * (len(widths) - 1) > most:
        wide = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not wide:
            break
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _fold(text: str, width: int, first: str = "", further: str = "") -> list[str]:
    """Lines of at most ``width`` columns, but for words that are longer; colour takes no room."""
    lines, line, length = [], first, len(first)
    fresh = True
    for word in text.split(" "):
        wide = len(plain(word))
        if not fresh and length + 1 + wide > width:
            lines.append(line)
            line, length, fresh = further, len(further), True
        line += word if fresh else f" {word}"
        length += wide if fresh else wide + 1
        fresh = False
    return [*lines, line]


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - len(plain(text)))
    return space + text if right else text + space


def number(value: float | None, digits: int = 6) -> str:
    """``value`` with ``digits`` significant digits; None is a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


def bound(value: float | None, digits: int = 6) -> str:
    """As ``number``, for what is a guarantee's: epsilon, delta, an attacker's chances. Never below ``value``."""
    return "-" if value is None else upward(value, digits)


def with_exponent(value: float | None, digits: int = 4) -> str:
    """``value`` as people write it, never less, with a power of ten where there is one: 0.001, 6.55·10⁻⁶, 10⁻⁵."""
    mantissa, mark, exponent = bound(value, digits).partition("e")
    if not mark:
        return mantissa
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa}·{power}"


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def size(count: int) -> str:
    """A number of bytes, in the unit that fits."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def short(digest: str) -> str:
    """A digest cut to what a reader compares by eye."""
    algorithm, _, value = digest.partition(":")
    return f"{algorithm}:{value[:12]}"


def _numeric(cell: str) -> bool:
    if cell in ("-", ""):
        return True
    try:
        float(plain(cell).replace(" ", "").rstrip("%"))
    except ValueError:
        return False
    return True
