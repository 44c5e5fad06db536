"""Whether a command printed what a page shows, but for figures that no run repeats.

A page shows an output in a ``text`` block right below the ``sh`` block of its commands. A line ``...`` stands for any
lines. Where ``<!-- measured: WORD, WORD -->`` stands above the block, numbers are left out of the comparison in columns
of tables, and in paragraphs, that have one of these words; nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_EXAMPLE = re.compile(r"```sh\n(.*?)```\n(?:\n(?:<!-- measured: (.*?) -->\n)?```text\n(.*?)```\n)?", re.DOTALL)
_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?|\binf\b")
_RULE = re.compile(r"-+(?:  +-+)+ *")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Commands, and what the page shows of their output, None where it shows none."""

    commands: str
    measured: tuple[str, ...]
    shown: str | None


def examples(text: str) -> list[Example]:
    """Every example of a page, in order."""
    return [
        Example(commands=commands, measured=tuple(words.split(", ")) if words else (), shown=shown or None)
        for commands, words, shown in _EXAMPLE.findall(text)
    ]


def missing(example: Example, printed: str) -> str | None:
    """The first part of what is shown, from one ``...`` to the next, that was not printed in this order; or None.

    The first part begins the output unless ``...`` stands before it, and the last part ends it unless one follows.
    """
    assert example.shown is not None
    found = list(_units(printed.splitlines(), example.measured))
    parts = re.split(r"^\.\.\.\n", example.shown, flags=re.MULTILINE)
    place = 0
    for number, part in enumerate(parts):
        wanted = list(_units(part.splitlines(), example.measured))
        starts = range(place, len(found) - len(wanted) + 1)
        if number == 0 and wanted:
            starts = range(1)
        if number == len(parts) - 1 and wanted:
            starts = range(max(place, len(found) - len(wanted)), len(found) - len(wanted) + 1)
        at = next((i for i in starts if found[i : i + len(wanted)] == wanted), None)
        if at is None:
            return part
        place = at + len(wanted)
    return None


def _units(lines: Sequence[str], measured: Sequence[str]) -> Iterator[str]:
    """Rows of tables by their cells, and paragraphs as one line each, without the numbers that no run repeats."""
    head: list[str] = []
    paragraph: list[str] = []
    for line, after in pairwise([*lines, ""]):
        in_table = bool(_RULE.fullmatch(after) or _RULE.fullmatch(line) or (head and line.strip()))
        if (
            in_table
            and not line.startswith(" ")
            and (not head or _RULE.fullmatch(line) or len(_cells(line)) == len(head))
        ):
            yield from _joined(paragraph, measured)
            paragraph = []
            if _RULE.fullmatch(after):
                head = _cells(line)
            if not _RULE.fullmatch(line):
                yield " | ".join(_column(*pair, measured) for pair in zip(head, _cells(line), strict=True))
            continue
        head = []
        if not line.strip() or not line.startswith("    ") and not line.startswith("  ") or _begins(line, paragraph):
            yield from _joined(paragraph, measured)
            paragraph = []
        if line.strip():
            paragraph.append(line)
    yield from _joined(paragraph, measured)


def _begins(line: str, paragraph: Sequence[str]) -> bool:
    """Whether ``line`` is no deeper than the first of the paragraph's lines, and so begins another."""
    return bool(paragraph) and _depth(line) <= _depth(paragraph[0])


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def _column(title: str, cell: str, measured: Sequence[str]) -> str:
    return _NUMBER.sub("#", cell) if title in measured else cell


def _joined(paragraph: Sequence[str], measured: Sequence[str]) -> Iterator[str]:
    if paragraph:
        text = " ".join(line.strip() for line in paragraph)
        yield _NUMBER.sub("#", text) if any(word in text for word in measured) else text
