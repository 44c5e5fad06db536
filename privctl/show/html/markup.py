"""Markup that cannot be broken out of: elements are nodes, and every string between them is text.

The only way to put markup on a page is to build it here; a string from a report is always escaped, whatever it holds.
The output is well-formed as XML as well as HTML.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from privctl.show.plain import no_command

#: Letters of one text that a page shows.
LIMIT = 600
_VOID = frozenset({"meta", "br", "hr", "col"})
#: Elements whose content is not text; only constants of this package ever stand in them.
_RAW = frozenset({"style", "script"})
#: Characters that change how the text around them is read, or that XML does not allow.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Node:
    """One element."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node | str, ...]

    def __str__(self) -> str:
        """The element as HTML."""
        return "".join(_written(self))


def el(tag: str, *children: Node | str | Iterable[Node | str] | None, **attributes: str | float | bool | None) -> Node:
    """An element; ``class_`` and ``aria_label`` stand for the names that Python does not have.

    None children and attributes are left out, True is an attribute by its own name.
    """
    return Node(tag, tuple(_attributes(attributes)), tuple(_flat(children)))


def clean(text: str, limit: int = LIMIT) -> str:
    """``text`` with what is invisible or turns the reading direction made visible, cut where it is absurdly long."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(
            letter if letter == "\n" or unicodedata.category(letter) not in _HIDDEN else f"\\u{ord(letter):04x}"
            for letter in cut
        )
    return no_command(cut)


def _flat(children: Iterable[Node | str | Iterable[Node | str] | None]) -> Iterator[Node | str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, (Node, str)):
            yield child
        else:
            yield from child


def _attributes(given: dict[str, str | float | bool | None]) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        if value is None or value is False:
            continue
        plain = name.rstrip("_").replace("_", "-")
        if value is True:
            yield plain, plain
        elif isinstance(value, str):
            yield plain, clean(value, 4000) if plain not in ("d", "points", "content") else value
        else:
            yield plain, coordinate(value)


def coordinate(value: float) -> str:
    """A length as a picture needs it: to a tenth, without needless zeros."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _written(node: Node) -> Iterator[str]:
    yield f"<{node.tag}"
    for name, value in node.attributes:
        yield f' {name}="{html.escape(value)}"'
    if node.tag in _VOID:
        yield "/>"
        return
    yield ">"
    for child in node.children:
        if isinstance(child, Node):
            yield from _written(child)
        elif node.tag in _RAW:
            yield child
        else:
            yield html.escape(clean(child), quote=False)
    yield f"</{node.tag}>"
    if node.tag in ("section", "tr", "p", "li", "figure", "article", "svg", "dd"):
        yield "\n"
