"""Shapes of a drawing: elements are nodes, and strings are text.

All shapes of a page are built here, so text from a report is always escaped. The output is well-formed XML and HTML. A
template includes a node as markup, by its ``__html__``.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from privctl.show.plain import clean

#: Most characters of an attribute, except those that contain only coordinates.
_LONGEST = 4000
_COORDINATES = frozenset({"d", "points"})


@dataclass(frozen=True, slots=True)
class Node:
    """One element with its attributes and children; a string among the children is text."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node | str, ...]

    def __str__(self) -> str:
        """The element as markup."""
        return "".join(_attribute_text(self))

    def __html__(self) -> str:
        """The element as markup, which is already escaped, for templates."""
        return str(self)


def el(tag: str, *children: Node | str | Iterable[Node | str], **attributes: str | float | None) -> Node:
    """Make an element. In names of attributes a trailing underscore is removed and others become hyphens.

    Attributes that are None are left out.
    """
    return Node(tag, tuple(_attributes(attributes)), tuple(_flat(children)))


def coordinate(value: float) -> str:
    """A coordinate rounded to a tenth, without trailing zeros."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _flat(children: Iterable[Node | str | Iterable[Node | str]]) -> Iterator[Node | str]:
    for child in children:
        if isinstance(child, (Node, str)):
            yield child
        else:
            yield from child


def _attributes(values: dict[str, str | float | None]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if value is None:
            continue
        plain = name.rstrip("_").replace("_", "-")
        if isinstance(value, str):
            yield plain, value if plain in _COORDINATES else clean(value, _LONGEST)
        else:
            yield plain, coordinate(value)


def _attribute_text(node: Node) -> Iterator[str]:
    yield f"<{node.tag}"
    for name, value in node.attributes:
        yield f' {name}="{html.escape(value)}"'
    yield ">"
    for child in node.children:
        if isinstance(child, Node):
            yield from _attribute_text(child)
        else:
            yield html.escape(clean(child), quote=False)
    yield f"</{node.tag}>"
