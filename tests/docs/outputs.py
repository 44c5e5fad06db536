"""Whether a command printed what a page shows, but for figures that no run repeats.

A page shows an output in a ``text`` block right below the ``sh`` block of its commands. A line ``...`` stands for any
lines. Where ``<!-- measured: WORD, WORD -->`` stands above the block, numbers are left out of the comparison in columns
of tables, and in paragraphs, that have one of these words; nothing else is. An output below ``<!-- varies: WHY -->`` is
not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_EXAMPLE = re.compile(r"```sh\n(.*?)```\n(?:\n(?:<!-- measured: (.*?) -->\n)?```text\n(.*?)```\n)?", re.DOTALL)
_SHOWN = re.compile(r"\n(?:<!-- (measured|varies): (.*?) -->\n)?```text\n(.*?)```\n", re.DOTALL)
_TABLE = re.compile(r"-+(?:  +-+)+ *")
#: A line under titles, as long as its column is wide.
_RULE = re.compile(r"^-+$")
_NUMBER = r"(?:\\d[\\d.,]*(?:e[+-]?\\d+)?|inf)"
#: A number in a pattern, where dots and signs are escaped.
_ESCAPED = re.compile(r"\d(?:\d|\\\.(?=\d)|,(?=\d))*(?:e(?:\\?[+-])?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Commands, and what the page shows of their output, None where it shows none."""

    commands: str
    measured: tuple[str, ...]
    shown: str | None


def examples(text: str) -> list[Example]:
    """Every example of a page, in order."""
    return [
        Example(commands=commands, measured=tuple(words.split(", ")) if words else (), shown=output or None)
        for commands, words, output in _EXAMPLE.findall(text)
    ]


def shown_after(text: str) -> list[tuple[str, list[Example]]]:
    """The commands of every ``sh`` block, and the outputs shown below them, up to the next block."""
    pieces = re.split(r"```sh\n(.*?)```\n", text, flags=re.DOTALL)[1:]
    return [
        (
            commands,
            [
                Example(commands=commands, measured=tuple(words.split(", ")) if words else (), shown=output)
                for mark, words, output in _SHOWN.findall(below)
                if mark != "varies"
            ],
        )
        for commands, below in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def missing(example: Example, printed: str) -> str | None:
    """The first part of the shown output, from one ``...`` to the next, that was not printed in this order; or None.

    Words are compared, however lines are folded and columns are spaced. The first part begins the output, and the last
    one ends it, unless ``...`` stands there.
    """
    assert example.shown is not None
    found = [_RULE.sub("-", word) for word in printed.split()]
    parts = re.split(r"^\.\.\.\n", example.shown, flags=re.MULTILINE)
    place, head = 0, list[str]()
    for number, part in enumerate(parts):
        wanted = list(_wanted(part.splitlines(), example.measured, head))
        last = len(found) - len(wanted)
        first = last if wanted and number == len(parts) - 1 else place
        starts = range(max(first, place), (0 if wanted and number == 0 else last) + 1)
        at = next((i for i in starts if _all_match(wanted, found[i:])), None)
        if at is None:
            return part
        place = at + len(wanted)
    return None


def _all_match(wanted: Sequence[re.Pattern[str]], found: Sequence[str]) -> bool:
    return len(wanted) <= len(found) and all(w.fullmatch(f) for w, f in zip(wanted, found, strict=False))


def _wanted(lines: Sequence[str], measured: Sequence[str], head: list[str]) -> Iterator[re.Pattern[str]]:
    """What each word has to match: any number where the page's is not repeated by another run.

    ``head`` is kept between parts of one output: the titles of the table that rows belong to, if any.
    """
    paragraph: list[str] = []
    for line, after in pairwise([*lines, ""]):
        cells = re.split(r"  +", line.strip())
        if _TABLE.fullmatch(after):
            head[:] = cells
        in_table = bool(head) and len(cells) == len(head)
        if in_table or not paragraph or _depth(line) <= _depth(paragraph[0]):
            yield from _words(" ".join(paragraph), any(word in " ".join(paragraph) for word in measured))
            paragraph = []
        if in_table:
            for title, cell in zip(head, cells, strict=True):
                yield from _words(cell, title in measured)
        else:
            head.clear()
            paragraph.append(line)
    yield from _words(" ".join(paragraph), any(word in " ".join(paragraph) for word in measured))


def _words(text: str, any_number: bool) -> Iterator[re.Pattern[str]]:
    for word in text.split():
        pattern = re.escape(_RULE.sub("-", word))
        yield re.compile(re.sub(_ESCAPED, _NUMBER, pattern) if any_number else pattern)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
