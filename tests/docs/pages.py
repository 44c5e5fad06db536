"""Reading the pages in ``docs/``: headings and their anchors, links, code blocks, tables, command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


def pages() -> dict[str, str]:
    """Every page of ``docs/`` by its name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", text)


def headings(text: str) -> list[str]:
    """The titles of a page's headings, in order."""
    return [title for _, title in _HEADING.findall(prose(text))]


def anchor(title: str) -> str:
    """The anchor that GitHub, and the site, give a heading."""
    return re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-")


@cache
def anchors(text: str) -> set[str]:
    """Every anchor of a page."""
    return {anchor(title) for title in headings(text)}


def links(text: str) -> list[str]:
    """The targets of a page's links."""
    return _LINK.findall(_SPAN.sub("", prose(text)))


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def command_lines(block: str) -> Iterator[list[str]]:
    """The words of each command of a shell block: continued lines joined, comments and redirections left out."""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        words = shlex.split(re.sub(r"\s*>>?\s*\S+$", "", line), comments=True)
        if words:
            yield words


def called(text: str) -> Iterator[list[str]]:
    """What a page calls privctl with, in shell blocks: the words after its name."""
    for block in blocks(text, "sh"):
        for words in command_lines(block):
            yield from (part[1:] for part in _parts(words) if part and part[0].split("/")[-1] == "privctl")


def mentioned(text: str) -> Iterator[list[str]]:
    """What a page names in passing, such as `privctl audit --canaries`: the words after privctl's name."""
    for span in _SPAN.findall(prose(text)):
        if span.startswith("privctl ") and "..." not in span:
            yield shlex.split(span)[1:]


def table(text: str, under: str) -> list[dict[str, str]]:
    """The rows of the first table below the heading ``under``, cells by column title."""
    section = prose(text).split(f" {under}\n", 1)[1]
    rows = []
    for line in section[section.index("\n|") + 1 :].splitlines():
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    names = rows[0]
    return [dict(zip(names, row, strict=True)) for row in rows[2:]]


def as_table(names: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _parts(words: list[str]) -> list[list[str]]:
    """A line's commands, parted by ``&&``."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return found
