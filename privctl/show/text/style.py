"""Text for the terminal: tables that fit its width, paragraphs, numbers, and colours with a meaning.

Colours are ANSI codes, which ``click.echo`` removes if the output is not a terminal or the user wants none. The tables
do not use rich: in a pipe or a file every row must be one line, and importing rich takes 30 ms.
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

#: Most columns of a line of a paragraph; fewer if the terminal is narrower.
WIDTH = 80
#: Columns assumed for a narrower terminal.
_MINIMUM_WIDTH = 40
#: Spaces between two columns of a table.
_GAP = 2
#: The width below which a column of text in a table is not narrowed.
_MINIMUM_COLUMN = 8
_CODES = re.compile("\x1b\\[[0-9;]*m")
#: What ``coloured`` writes; any other escape code came with text from a report.
_OWN_COLOURS = re.compile("\x1b\\[(3[123])m([^\x1b]*)\x1b\\[0m")


class Colour(StrEnum):
    """Colours by meaning: good, caution, bad."""

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
    """The columns of the terminal, or the value of COLUMNS; None if standard output is not a terminal."""
    requested = os.environ.get("COLUMNS", "")
    if requested.isdecimal() and int(requested) > 0:
        return max(_MINIMUM_WIDTH, int(requested))
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return max(_MINIMUM_WIDTH, shutil.get_terminal_size().columns)


def coloured(text: str, colour: Colour) -> str:
    """``text`` in ``colour``."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def status_word(status: Status) -> str:
    """A guarantee's status, coloured by the status."""
    return coloured(str(status), _OF_STATUS[status])


def graded_word(guarantee: Guarantee) -> str:
    """A guarantee's status, coloured by the guarantee's severity; not for noise on finished weights."""
    return coloured(str(guarantee.status), _OF_SEVERITY[severity(guarantee, None)])


def outcome_word(outcome: Outcome) -> str:
    """A verdict's outcome, coloured."""
    return coloured(str(outcome), _OF_OUTCOME[outcome])


def plain(text: str) -> str:
    """``text`` without colour codes."""
    return _CODES.sub("", text)


def _sanitize(text: str) -> str:
    """``text`` on one line with the colours of ``coloured``; other control characters are escaped."""
    if "\x1b" not in text:
        return escape_hidden(text)
    parts, last = [], 0
    for match in _OWN_COLOURS.finditer(text):
        parts += [escape_hidden(text[last : match.start()]), f"\x1b[{match[1]}m{escape_hidden(match[2])}\x1b[0m"]
        last = match.end()
    return "".join((*parts, escape_hidden(text[last:])))


def paragraph(text: str, *, indent: int = 0, hanging: int | None = None) -> str:
    """``text``, with control characters escaped, wrapped to 80 columns or the terminal's width, ending in a newline.

    Lines after the first are indented by ``hanging``, by default ``indent`` + 2. A longer word gets its own line.
    """
    further = indent + 2 if hanging is None else hanging
    lines = _wrap(_sanitize(text), min(WIDTH, columns() or WIDTH), " " * indent, " " * further)
    return "\n".join(map(str.rstrip, lines)) + "\n"


def notes(warnings: Iterable[str]) -> str:
    """``warnings`` as notes, one paragraph each."""
    return "".join(paragraph(f"note: {warning}") for warning in warnings)


def assumption_lines(assumptions: Iterable[Assumption], *, verbose: bool) -> str:
    """The assumptions, one paragraph each; without ``verbose`` those that were enforced are only counted."""
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
    """A table with aligned columns, numbers to the right, ending in a newline.

    If a line exceeds the terminal's width, cells in the widest text columns are wrapped; without a terminal every row
    is one line.
    """
    cells = [list(headings), *[[_sanitize(cell) for cell in row] for row in rows]]
    right = [all(_is_numeric(row[i]) for row in cells[1:]) for i in range(len(headings))]
    widths = _widths(cells, right, columns())
    lines = []
    for row in cells:
        folded = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for k in range(max(map(len, folded))):
            parts = [part[k] if k < len(part) else "" for part in folded]
            padded = (_pad(p, w, r) for p, w, r in zip(parts, widths, right, strict=True))
            lines.append((" " * _GAP).join(padded).rstrip())
    rule = (" " * _GAP).join("-" * width for width in widths)
    lines.insert(max(len(_wrap(cell, width)) for cell, width in zip(cells[0], widths, strict=True)), rule)
    return "\n".join(lines) + "\n"


def _widths(cells: Sequence[Sequence[str]], right: Sequence[bool], most: int | None) -> list[int]:
    """The width of each column: that of its widest cell, reduced for text columns so that the table fits in ``most``.

    No column is narrower than its longest word, so the table may not fit.
    """
    widths = [max(len(plain(row[i])) for row in cells) for i in range(len(cells[0]))]
    words = [max((len(w) for row in cells for w in plain(row[i]).split()), default=0) for i in range(len(widths))]
    least = [
        min(width, word if number else max(_MINIMUM_COLUMN, word))
        for width, word, number in zip(widths, words, right, strict=True)
    ]
    while most is not None and sum(widths) + _GAP * (len(widths) - 1) > most:
        wide = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not wide:
            break
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _wrap(text: str, width: int, first: str = "", further: str = "") -> list[str]:
    """Lines of at most ``width`` columns, except for longer words; colour codes do not count."""
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
    """``value`` with ``digits`` significant digits; a dash for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def bound(value: float | None, digits: int = 6) -> str:
    """As ``number``, but rounded up: for epsilon, delta and an attacker's probabilities."""
    return "-" if value is None else upward(value, digits)


def with_exponent(value: float | None, digits: int = 4) -> str:
    """``value`` rounded up, with a power of ten if it is very small or large: 0.001, 6.55·10⁻⁶, 10⁻⁵."""
    mantissa, mark, exponent = bound(value, digits).partition("e")
    if not mark:
        return mantissa
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa}·{power}"


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def size(count: int) -> str:
    """A number of bytes in the unit that fits, such as 1.5 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def short(digest: str) -> str:
    """A digest cut to 12 hexadecimal digits after its algorithm."""
    algorithm, _, value = digest.partition(":")
    return f"{algorithm}:{value[:12]}"


def _is_numeric(cell: str) -> bool:
    if cell in ("-", ""):
        return True
    try:
        float(plain(cell).replace(" ", "").rstrip("%"))
    except ValueError:
        return False
    return True
